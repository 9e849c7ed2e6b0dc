"""What controllers are trained on: speculation with long drafts; of every drafted token what was seen and came of it.

Works with any drafter that takes a controller: it is run as it is, with a controller that always wants more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor
from tqdm import tqdm

from specbench.controllers.base import ControllerBase
from specbench.decoding.loop import SpeculativeDecoding
from specbench.decoding.protocol import Block, Drafter, Request
from specbench.decoding.sampling import probabilities
from specbench.results.files import write_atomically
from specbench.types import ChoiceRecord, ConfigError, Draft, ModelError, Needs, Verdict, VerifyResult

_SIGNALS = frozenset({"prob", "entropy", "margin", "hidden"})


@dataclass(frozen=True)
class Rollouts:
    """n drafted tokens of m steps, in the order in which they were drafted.

    Tokens: `hidden` [n, d] the state that predicted it, `token` [n] its id, `prob`, `entropy` (nats), `margin` [n] of
    the draft's distribution there, `index` [n] its place in the draft from 1, `accepted` [n], `accept_prob` [n] the
    chance with which verification accepts it if it accepts all before it (NaN behind the first rejected token, where
    the target never saw the right past), `step` [n] its step. Steps: `step_prompt` [m] number of the prompt,
    `step_context` [m] committed tokens before the step (token x_j has position step_context + j - 1), `step_root` [m]
    id of the last of them, `step_emitted` [m] tokens of the answer that came from it and from steps without a draft
    right behind it (empty in files that are older). Where it was asked for: `context_token` [N] and `context_before`
    [N, d], the committed tokens of one prompt after another with the state that predicted each, and `step_offset` [m]
    where the prompt of a step begins there. `meta`: how it was collected.
    """

    hidden: Tensor
    token: Tensor
    prob: Tensor
    entropy: Tensor
    margin: Tensor
    index: Tensor
    accepted: Tensor
    accept_prob: Tensor
    step: Tensor
    step_prompt: Tensor
    step_context: Tensor
    step_root: Tensor
    step_emitted: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    context_token: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    context_before: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    step_offset: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.token.shape[0])

    @property
    def prompt(self) -> Tensor:
        """The prompt's number of every token [n]."""
        return self.step_prompt[self.step]

    @property
    def num_accepted(self) -> Tensor:
        """Accepted tokens of every step [m]."""
        return torch.zeros(len(self.step_prompt), dtype=torch.int64).index_add(0, self.step, self.accepted.long())

    def save(self, path: Path) -> None:
        """One safetensors file; a kill leaves none or a whole one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {name: getattr(self, name).contiguous() for name in _TENSORS}
        write_atomically(path, save(tensors, metadata={"meta": json.dumps(dict(self.meta))}))


_TENSORS = tuple(part.name for part in fields(Rollouts) if part.name != "meta")


def load_rollouts(path: Path) -> Rollouts:
    """What `save` wrote; ModelError names a file that is something else."""
    try:
        with safe_open(path, framework="pt") as stored:
            older = {"step_emitted"} - set(stored.keys())
            tensors = {name: stored.get_tensor(name) for name in _TENSORS if name not in older}
            meta = json.loads((stored.metadata() or {}).get("meta", "{}"))
    except Exception as error:  # the library raises several kinds
        raise ModelError(f"{path} holds no collected steps: {error}") from error
    return Rollouts(**tensors, meta=meta)


def collect(
    generator: SpeculativeDecoding,
    prompts: Sequence[Sequence[int]],
    *,
    num_draft_tokens: int,
    max_new_tokens: int,
    stop_ids: Sequence[int] = (),
    seed: int = 0,
    forget: bool = True,
    context: bool = False,
    hidden_dtype: torch.dtype = torch.float16,
    meta: Mapping[str, Any] | None = None,
) -> Rollouts:
    """Answer every prompt (token ids) with drafts of `num_draft_tokens` tokens and keep what each step showed.

    Drafts should be at least as long as the longest that the controller will allow, or late positions stay untrained.
    `forget`: what the drafter learns is dropped after every prompt. `context`: states of committed tokens are kept too.
    The generator keeps its own controller afterwards. ConfigError for a drafter that takes no controller, or keeps no
    such states; ModelError when nothing was drafted.
    """
    drafter: Any = generator.drafter
    if not hasattr(drafter, "controller"):
        raise ConfigError(f"{type(drafter).__name__} takes no controller, so there is nothing to collect")
    recorder, own = _Recorder(num_draft_tokens, max(1, num_draft_tokens), context=context), drafter.controller
    watched = _Watched(drafter, recorder, hidden_dtype)
    drafter.controller, generator.drafter = recorder, watched
    try:
        for number, prompt in enumerate(tqdm(prompts, desc="collecting", unit="prompt", mininterval=1.0)):
            watched.prompt = number
            if forget or number == 0:
                generator.reset()
            generator.generate(prompt, max_new_tokens=max_new_tokens, seed=seed + number, stop_ids=stop_ids)
    finally:
        drafter.controller, generator.drafter = own, drafter
    known = {"num_draft_tokens": num_draft_tokens, "max_new_tokens": max_new_tokens, "seed": seed}
    return watched.rollouts({**known, "num_prompts": len(prompts), **(meta or {})})


@dataclass
class _Recorder(ControllerBase):
    """Always wants more, and keeps what it was shown."""

    context: bool = False
    blocks: list[Block] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.signals = _SIGNALS | {"past"} if self.context else _SIGNALS

    def start_step(self, budget: int) -> int:
        self.blocks = []
        return super().start_step(budget)

    def more(self, block: Block) -> bool:
        self.blocks.append(block)
        return True

    def ended(self, block: Block) -> None:
        self.blocks.append(block)


@dataclass
class _Watched:
    """A drafter as the loop sees it, whose steps are written down between verdict and the drafter's own learning."""

    inner: Drafter
    recorder: _Recorder
    hidden_dtype: torch.dtype
    prompt: int = 0
    _request: Request | None = None
    _draft: Draft | None = None
    _context: tuple[int, int] = (0, 0)  # committed tokens before the step, and the last of them
    _rows: list[dict[str, Tensor]] = field(default_factory=list)
    _steps: list[tuple[int, int, int, int]] = field(default_factory=list)  # prompt, context, root, offset
    _emitted: list[int] = field(default_factory=list)  # by each of them
    _past: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # committed tokens and what predicted them
    _noted: tuple[int, int] = (0, 0)  # committed tokens in `_past`: of earlier prompts, of this one

    def begin(self, request: Request) -> None:
        self._noted = sum(self._noted), 0
        self._request = request
        self.inner.begin(request)

    def needs(self) -> Needs:
        return self.inner.needs()

    def propose(self, budget: int) -> Draft:
        assert self._request is not None
        self.recorder.blocks = []
        self._context = len(self._request.committed), self._request.committed[-1]
        self._draft = self.inner.propose(budget)
        return self._draft

    def observe(self, verdict: Verdict, result: VerifyResult) -> None:
        if self.recorder.blocks:
            self._note(verdict, result)
            self._emitted.append(len(verdict.tokens))
        elif self._steps and self._steps[-1][0] == self.prompt:
            self._emitted[-1] += len(verdict.tokens)
        self.inner.observe(verdict, result)

    def choices(self) -> Sequence[ChoiceRecord]:
        return self.inner.choices()

    def reset(self) -> None:
        self.inner.reset()

    def _note(self, verdict: Verdict, result: VerifyResult) -> None:
        blocks, draft = self.recorder.blocks, self._draft
        assert draft is not None
        count = sum(len(block.tokens) for block in blocks)
        assert draft.spine == count, "what the controller saw is the spine"
        index = torch.arange(1, count + 1)
        signals = {name: torch.cat([getattr(block, name) for block in blocks]).cpu() for name in _SIGNALS}
        accepted = index <= verdict.num_accepted_spine
        self._rows.append(
            {
                **{name: signals[name].float() for name in ("prob", "entropy", "margin")},
                "hidden": signals["hidden"].to(self.hidden_dtype),
                "token": draft.tokens[:count].cpu(),
                "index": index,
                "accepted": accepted,
                "accept_prob": self._accept_probs(result, signals["prob"], accepted),
                "step": torch.full((count,), len(self._steps)),
            }
        )
        if self.recorder.context:
            self._note_past(blocks[0])
        self._steps.append((self.prompt, *self._context, self._noted[0]))

    def _note_past(self, block: Block) -> None:
        """Committed tokens that came since the last step, each with the state that predicted it."""
        assert self._request is not None
        if block.past is None:
            raise ConfigError(
                f"method.controller.scope=context: {type(self.inner).__name__} keeps no states of what is committed; "
                "legal here: step"
            )
        (earlier, first), count = self._noted, self._context[0]
        states = block.past[max(first - 1, 0) : count - 1].to("cpu", self.hidden_dtype)
        if first == 0:
            states = torch.cat([states.new_zeros(1, states.shape[1]), states])
        self._past.append((torch.tensor(self._request.committed[first:count]), states))
        self._noted = earlier, count

    def _accept_probs(self, result: VerifyResult, q: Tensor, accepted: Tensor) -> Tensor:
        """min(1, p / q) of the tokens up to the first rejected one; when greedy, whether it is the argmax."""
        assert self._request is not None
        assert self._draft is not None
        known = min(len(accepted), int(accepted.sum()) + 1)
        chances = torch.full((len(accepted),), torch.nan)
        if self._request.sampling.greedy:
            chances[:known] = accepted[:known].float()
        else:
            assert result.logits is not None
            p = probabilities(result.logits[:known], self._request.sampling).cpu()
            own = p.gather(1, self._draft.tokens[:known].cpu()[:, None])[:, 0]
            chances[:known] = (own / q[:known]).clamp_max(1.0).float()
        return chances

    def rollouts(self, meta: Mapping[str, Any]) -> Rollouts:
        """Everything written down so far."""
        if not self._rows:
            raise ModelError("nothing was drafted, so there is nothing to train on: longer answers are needed")
        tokens = {name: torch.cat([row[name] for row in self._rows]) for name in self._rows[0]}
        prompt, context, root, offset = (torch.tensor(column) for column in zip(*self._steps, strict=True))
        emitted = torch.tensor(self._emitted)
        steps = {"step_prompt": prompt, "step_context": context, "step_root": root, "step_emitted": emitted}
        if self._past:
            committed, states = (torch.cat(column) for column in zip(*self._past, strict=True))
            steps |= {"context_token": committed, "context_before": states, "step_offset": offset}
        return Rollouts(**tokens, **steps, meta=meta)
