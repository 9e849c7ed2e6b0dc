"""The one decode loop: a drafter proposes, the target verifies, accepted tokens are committed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch

from specbench.decoding.protocol import Drafter, Request
from specbench.decoding.sampling import GeneratorDraws
from specbench.decoding.stopping import cut
from specbench.decoding.target import Target
from specbench.decoding.verification import verify
from specbench.hardware.timer import PhaseTimer
from specbench.types import (
    ConfigError,
    Draft,
    Generation,
    SampleError,
    Sampling,
    StepRecord,
    Verdict,
    VerifyResult,
)

_DRAFTING = ("stop_reason", "block_lengths", "block_scores")  # entries of Draft.info with columns of their own
_TREE_ROWS = 256  # cache rows beyond the budget, for siblings, phrases and passengers


@dataclass
class SpeculativeDecoding:
    """The Generator around a drafter; with a drafter that proposes nothing it is autoregressive decoding.

    Before every step the target's cache holds all committed tokens but the last, which is the root of the step.
    `decode_s` ends with the last step, the drafter's learning included.
    """

    target: Target
    drafter: Drafter
    sampling: Sampling = field(default_factory=Sampling)
    rule: str = "rejection"
    timer: PhaseTimer = field(default_factory=PhaseTimer)

    @torch.inference_mode()
    def generate(
        self,
        prompt: Sequence[int],
        *,
        max_new_tokens: int,
        seed: int,
        stop_ids: Iterable[int] = (),
        reference_ids: Sequence[int] | None = None,
    ) -> Generation:
        """Decode after `prompt` (token ids, at least one) until the first stop id or `max_new_tokens` tokens."""
        _check(prompt, max_new_tokens)
        request = Request(
            target=self.target,
            committed=list(prompt),
            sampling=self.sampling,
            draws=GeneratorDraws(seed),
            stop_ids=frozenset(stop_ids),
            max_new_tokens=max_new_tokens,
            timer=self.timer,
            reference_ids=reference_ids,
        )
        self.timer.restart()
        prompt_result = self._prefill(request)
        prefill_s = sum(self.timer.lap().values())
        steps, stopped = self._decode(request, prompt_result, end=len(prompt) + max_new_tokens)
        seconds = [step.draft_s + step.verify_s + step.adapt_s + step.host_s for step in steps]
        return Generation(
            tokens=tuple(request.committed[len(prompt) :]),
            finish_reason="stop" if stopped else "length",
            prefill_s=prefill_s,
            decode_s=sum(seconds),
            ttft_s=prefill_s + seconds[0],
            steps=tuple(steps),
            choices=tuple(self.drafter.choices()),
        )

    def reset(self) -> None:
        self.drafter.reset()

    def _prefill(self, request: Request) -> VerifyResult | None:
        self.drafter.begin(request)
        capacity = len(request.committed) + request.max_new_tokens + _TREE_ROWS
        return self.target.prefill(request.committed, capacity=capacity, needs=self.drafter.needs())

    def _decode(
        self, request: Request, prompt_result: VerifyResult | None, *, end: int
    ) -> tuple[list[StepRecord], bool]:
        steps: list[StepRecord] = []
        stopped = False
        while len(request.committed) < end and not stopped:
            before = len(request.committed)
            draft, verdict = self._step(request, prompt_result if not steps else None, left=end - before)
            stopped = verdict.stopped
            steps.append(_record(len(steps), before, draft, verdict, self.timer.lap()))
        return steps, stopped

    def _step(self, request: Request, prompt_result: VerifyResult | None, *, left: int) -> tuple[Draft, Verdict]:
        timer, committed = self.timer, request.committed
        needs = self.drafter.needs()
        with timer.phase("draft"):
            draft = self.drafter.propose(left - 1)
        with timer.phase("verify"):
            result = self.target.verify(committed[-1], draft, needs, greedy=self.sampling.greedy)
        verdict = verify(draft, result, sampling=self.sampling, draws=request.draws, rule=self.rule)
        verdict = cut(verdict, stop_ids=request.stop_ids, budget=left)
        commit(request, verdict)
        with timer.phase("adapt"):
            self.drafter.observe(verdict, result if prompt_result is None else replace(result, prompt=prompt_result))
        return draft, verdict


def _check(prompt: Sequence[int], max_new_tokens: int) -> None:
    if max_new_tokens < 1:
        raise ConfigError(f"max_new_tokens={max_new_tokens}: must be at least 1")
    if not prompt:
        raise SampleError("the prompt has no tokens")


def commit(request: Request, verdict: Verdict) -> None:
    """Append the emitted tokens and keep the cache rows of all of them but the last."""
    request.target.cache.keep([0, *(row + 1 for row in verdict.rows[: len(verdict.tokens) - 1])])
    request.committed.extend(verdict.tokens)


def _record(step: int, context: int, draft: Draft, verdict: Verdict, spent: dict[str, float]) -> StepRecord:
    return StepRecord(
        step=step,
        context_length=context,
        num_draft_tokens=draft.spine,
        num_tree_tokens=len(draft) - draft.passengers,
        num_passengers=draft.passengers,
        num_accepted=verdict.num_accepted,
        num_accepted_spine=verdict.num_accepted_spine,
        num_emitted=len(verdict.tokens),
        draft_s=spent["draft"],
        verify_s=spent["verify"],
        adapt_s=spent["adapt"],
        host_s=spent["host"],
        draft_tokens=tuple(draft.tokens.tolist()),
        info={name: value for name, value in draft.info.items() if name not in _DRAFTING},
        **{name: draft.info.get(name) for name in _DRAFTING},
        oracle_length=oracle_length(draft, verdict),
    )


def oracle_length(draft: Draft, verdict: Verdict) -> int | None:
    """Spine tokens that were worth drafting: those before the first rejected one, or up to an accepted stop id.

    None without a spine, and where all of it was accepted and a longer draft might have been.
    """
    if not draft.spine:
        return None
    ended_inside = verdict.stopped and len(verdict.tokens) == verdict.num_accepted
    known = ended_inside or verdict.num_accepted_spine < draft.spine
    return verdict.num_accepted_spine if known else None


def empty_draft(stop_reason: str = "", *, device: torch.device | str = "cpu") -> Draft:
    """A draft of nothing: the step is an autoregressive one."""
    info = {"stop_reason": stop_reason} if stop_reason else {}
    return Draft(tokens=torch.empty(0, dtype=torch.int64, device=device), spine=0, info=info)
