"""Ouroboros: a draft model that decodes with lookahead, drafts made longer by phrases (Zhao et al. 2024)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from specbench.decoding.loop import empty_draft
from specbench.decoding.protocol import Block, Controller, DrafterBase, Request
from specbench.decoding.sampling import probabilities
from specbench.methods.build import Parts, build_controller
from specbench.methods.lookahead import build_engine
from specbench.methods.lookahead_draft import Burst, LookaheadDraft
from specbench.methods.phrase_learning import Verified, learn_library, learn_spec_bench
from specbench.methods.phrases import Trie, merge
from specbench.methods.signals import with_signals
from specbench.models.kv_cache import KVCache
from specbench.models.linear import scored_ids
from specbench.types import ConfigError, Draft, Needs, Verdict, VerifyResult

LEARNING = {"library": learn_library, "spec_bench": learn_spec_bench}


@dataclass(frozen=True)
class Options:
    """What the published variants and ours differ in; see `OuroborosConfig`."""

    variant: str = "library"
    suffix_k: int = 3
    suffix_policy: str = "always"
    truncate_overshoot: bool = False
    block_overshoot: str = "extend"
    block_unit: str = "tokens"
    on_fail: str = "submit_all"


@dataclass
class Spine:
    """What was drafted in a step: tokens, and of each the row that predicted it."""

    tokens: list[int] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)  # [V] each
    states: list[Tensor] = field(default_factory=list)  # [d] each
    lengths: list[int] = field(default_factory=list)  # tokens of each block that a controller was shown
    scores: list[float] = field(default_factory=list)  # what it made of those that it judged
    forwards: int = 0
    stopped: bool = False  # the last token is a stop id

    def extend(self, burst: Burst) -> None:
        self.tokens += burst.tokens
        self.logits += burst.logits.unbind()
        self.states += burst.states.unbind()
        self.forwards += 1
        self.stopped = burst.stopped

    def cut(self, count: int) -> None:
        """Forget all but the first `count` tokens."""
        for rows in (self.tokens, self.logits, self.states):
            del rows[count:]


@dataclass
class Ouroboros(DrafterBase):
    """The draft model's tokens are the spine, the newest phrases after the last of them branches of a tree."""

    model: LookaheadDraft
    controller: Controller
    options: Options
    _before: int = field(init=False, default=0)  # committed tokens when the draft was made
    _spine: Spine = field(init=False, default_factory=Spine)
    _suffixes: Trie = field(init=False, default_factory=Trie)

    @classmethod
    def build(cls, config: Any, parts: Parts) -> Ouroboros:
        if config.on_fail == "drop_block" and not parts.sampling.greedy:
            raise ConfigError(
                "method.on_fail=drop_block: only legal with sampling.temperature=0: leaving out tokens that the draft "
                "has drawn would change the distribution of the answer; legal here: submit_all"
            )
        model = LookaheadDraft(parts.require_draft(), build_engine(config), config.rows, config.take_perfect_bonus)
        options = Options(
            config.variant,
            config.suffix.k,
            config.suffix.policy,
            config.truncate_overshoot,
            config.block_overshoot,
            config.block_unit,
            config.on_fail,
        )
        return cls(model, build_controller(config, parts), options)

    @property
    def cache(self) -> KVCache:
        return self.model.cache

    def begin(self, request: Request) -> None:
        super().begin(request)
        self.model.keeps_past = "past" in self.controller.signals
        self.model.begin(request)
        self.controller.begin(request)

    def needs(self) -> Needs:
        return Needs(argmax=True)  # of every row: rejected ones teach as well

    def propose(self, budget: int) -> Draft:
        self._before, self._spine = len(self.request.committed), Spine()
        cap = min(budget, self.controller.start_step(budget))
        if cap <= 0:
            return empty_draft("budget" if budget <= 0 else "rule")
        by_rule = self._draft(cap, limit=cap if self.options.truncate_overshoot else budget)
        if not self._spine.tokens:
            return empty_draft("rule")
        reason = "rule" if by_rule else "stop_id" if self._spine.stopped else "cap" if cap < budget else "budget"
        return self._finished(reason, budget)

    def _draft(self, cap: int, *, limit: int) -> bool:
        """Draft block after block, at most `limit` tokens and none once there are `cap`; whether the rule ended it."""
        spine, first, over = self._spine, 0, False
        while not over:
            self._fill_block(first, cap, limit=limit)
            over = spine.stopped or len(spine.tokens) >= cap
            for start, end in self._blocks(first, cap, whole=over):
                if over and end == len(spine.tokens):  # nobody is asked where the answer cannot matter
                    self.controller.ended(self._block(start, end))
                elif not self._more(self._block(start, end)):
                    self._fail(start)
                    return True
                first = end
        return False

    def _more(self, block: Block) -> bool:
        wanted = self.controller.more(block)
        if self.controller.score is not None:
            self._spine.scores.append(self.controller.score)
        return wanted

    def _fill_block(self, first: int, cap: int, *, limit: int) -> None:
        """Draft until the block that starts at token `first` is complete, or the draft is."""
        spine, size, forwards = self._spine, self.controller.block_size, self._spine.forwards
        while True:
            spine.extend(self.model.burst(self._unseen(), room=limit - len(spine.tokens)))
            by_tokens = self.options.block_unit == "tokens"
            done = len(spine.tokens) - first if by_tokens else spine.forwards - forwards
            if spine.stopped or done >= size or len(spine.tokens) >= cap:
                return

    def _unseen(self) -> list[int]:
        """Committed and drafted tokens that are not in the draft's cache."""
        seen = self.cache.length
        return self.request.committed[seen:] + self._spine.tokens[max(0, seen - self._before) :]

    def _blocks(self, first: int, cap: int, *, whole: bool) -> Iterator[tuple[int, int]]:
        """Where blocks to be judged begin and end; what is left waits for the next pass unless the draft is `whole`.

        What a burst drafted at and beyond the cap of a whole draft is one block: no rule has a say there.
        """
        drafted, size = len(self._spine.tokens), self.controller.block_size
        if self.options.block_overshoot == "carry" and self.options.block_unit == "tokens":
            judged = min(drafted, cap - 1) if whole else drafted
            while first + size <= judged:
                yield first, first + size
                first += size
        elif first < drafted:
            yield first, drafted
            return
        if whole and first < drafted:
            yield first, drafted

    def _block(self, first: int, end: int) -> Block:
        spine = self._spine
        spine.lengths.append(end - first)
        past = None if self.model.past is None else self.model.past.first(self._before - 1)
        block = Block(first, spine.tokens[first:end], past=past)
        if not self.controller.signals:
            return block
        logits, states = torch.stack(spine.logits[first:end]), torch.stack(spine.states[first:end])
        scored = scored_ids(self.model.decoder.head)
        few = logits if scored is None else logits[:, scored]
        return with_signals(block, self.controller.signals, self.request.sampling, few, states, scored=scored)

    def _fail(self, first: int) -> None:
        """A block was judged too weak: it is verified all the same, or with `drop_block` it is not."""
        if self.options.on_fail == "drop_block":
            self._spine.cut(first)
            self.cache.truncate(min(self.cache.length, self._before + first))

    def _finished(self, reason: str, budget: int) -> Draft:
        spine, pool = self._spine, self.model.engine.pool
        count = len(spine.tokens)
        shown = sum(spine.lengths)
        assert shown <= count or self.options.on_fail == "drop_block", "what a rule was shown is drafted and submitted"
        wanted = self.options.suffix_policy == "always" or reason != "rule"
        phrases = pool.newest(spine.tokens[-1], self.options.suffix_k if wanted else 0)
        self._suffixes = trie = merge(phrases, depth=budget - count)
        sampling, device = self.request.sampling, self.request.target.decoder.device
        return Draft(
            tokens=torch.tensor([*spine.tokens, *trie.tokens], device=device),
            parents=(*range(-1, count - 1), *(count + parent for parent in trie.parents)) if trie.tokens else None,
            q=None if sampling.greedy else self._q(),
            q_row=None if sampling.greedy else (*range(count), *(-1,) * len(trie)),
            spine=count,
            leaf_bonus=self.model.take_perfect_bonus or not trie.tokens or budget - count < pool.length,
            info=self._info(reason) | {"num_suffixes": len(phrases)},
        )

    def _info(self, reason: str) -> dict[str, Any]:
        spine = self._spine
        return {
            "stop_reason": reason,
            "block_lengths": tuple(spine.lengths),
            "block_scores": tuple(spine.scores),
            "draft_forwards": spine.forwards,
            **self.controller.notes(),
        }

    def _q(self) -> Tensor:
        """[n, V] the distributions that the draft tokens were drawn from, in the target's vocabulary."""
        q = probabilities(torch.stack(self._spine.logits), self.request.sampling)
        return pad(q, (0, self.request.target.decoder.spec.vocab_size - q.shape[1]))

    def observe(self, verdict: Verdict, result: VerifyResult) -> None:
        accepted, spine = verdict.num_accepted_spine, self._spine
        self.cache.truncate(min(self.cache.length, self._before + accepted))
        self.controller.end_step(len(spine.tokens), verdict)
        if spine.tokens:
            assert result.argmax is not None
            step = Verified(spine.tokens, self._whole_suffixes(), result.argmax.tolist(), accepted)
            LEARNING[self.options.variant](self.model.engine.pool, step)

    def _whole_suffixes(self) -> Trie:
        """The phrases that were tried, unless the budget cut them."""
        length = self.model.engine.pool.length
        return self._suffixes if all(len(path) == length for path in self._suffixes.paths) else Trie()

    def reset(self) -> None:
        self.model.engine.pool.clear()
        self.controller.reset()
