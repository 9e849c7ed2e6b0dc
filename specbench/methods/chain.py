"""Drafting a chain token by token, block by block, with any controller: shared by all model-based drafters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specbench.decoding.loop import empty_draft
from specbench.decoding.protocol import Block, Controller, Request
from specbench.decoding.sampling import probabilities
from specbench.methods.signals import with_signals
from specbench.types import Draft

# Draft ids to feed [1, n] -> (logits of the last row [n], normed hidden state of it [d]); n tokens are scored.
Forward = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Branching:
    """Leaf siblings beside every spine token, fewer where the draft is sure of its token.

    `widths[i]` candidates at a depth (the spine token included) when its probability is above `thresholds[i]`, the
    last width below all; at most `max_nodes` rows in the tree, and at most `rooms[n - 1]` siblings beside a spine of n
    tokens (the last entry for longer ones; empty = no such limit). Source: SWIFT and ConfLayers.
    """

    thresholds: tuple[float, ...] = (0.95, 0.8, 0.5)
    widths: tuple[int, ...] = (3, 5, 8, 10)
    max_nodes: int = 131
    rooms: tuple[int, ...] = ()

    def room(self, spine: int) -> int:
        """The most siblings beside a spine of so many tokens."""
        left = max(0, self.max_nodes - spine)
        return min(left, self.rooms[min(spine, len(self.rooms)) - 1]) if self.rooms else left

    def width(self, prob: float) -> int:
        above = (width for threshold, width in zip(self.thresholds, self.widths, strict=False) if prob > threshold)
        return next(above, self.widths[-1])


@dataclass
class ChainDrafter:
    """Runs `forward` until the controller, a stop id or the budget ends the chain.

    `vocab_size` is the target's; draft logits beyond it are dropped and missing ones count as probability 0. With
    `branching` the chain becomes the spine of a tree.

    A stop rule is shown blocks that are drafted already, and everything drafted is submitted: dropping a sampled
    token for what it is would bias what comes out. Both are asserted here, for every rule.
    """

    controller: Controller
    vocab_size: int
    request: Request
    branching: Branching | None = None
    past: Tensor | None = None  # [C - 1, d] states of what is committed, where the controller asks for them
    scored: Tensor | None = None  # [n] the tokens that `forward` scores, ascending, where it is not all of the draft's
    _tokens: list[int] = field(default_factory=list)
    _q: list[Tensor] = field(default_factory=list)
    _drawn: int = 0  # tokens picked from the draft's distributions and not discarded behind a stop id
    _lengths: list[int] = field(default_factory=list)  # tokens of each block
    _scores: list[float] = field(default_factory=list)  # what the controller made of each block it judged
    _probs: list[float] = field(default_factory=list)  # of the spine tokens; only with branching
    _siblings: list[list[int]] = field(default_factory=list)  # a list a depth; only with branching

    def draft(self, forward: Forward, feed: Sequence[int], *, budget: int, planned: int | None = None) -> Draft:
        """A chain of at most `budget` tokens after `feed`, whose last token is the root; fewer where fewer are planned.

        The controller is told the smaller of the two as its budget.
        """
        most = budget if planned is None else min(budget, planned)
        cap = min(most, self.controller.start_step(most))
        if cap <= 0:
            return empty_draft("budget" if budget <= 0 else "rule")
        longest = "cap" if cap < most else "planned" if most < budget else "budget"
        following = torch.tensor([list(feed)], device=self.request.target.decoder.device)
        while True:
            size = min(self.controller.block_size, cap - len(self._tokens))
            block, following, stopped = self._block(forward, following, size)
            assert block.first + len(block.tokens) == len(self._tokens), "a rule looks at what is drafted, all of it"
            if stopped or len(self._tokens) == cap:  # nobody is asked where the answer cannot matter
                self.controller.ended(block)
                return self._finished("stop_id" if stopped else longest)
            if not self._more(block):
                return self._finished("rule")

    def _more(self, block: Block) -> bool:
        wanted = self.controller.more(block)
        if self.controller.score is not None:
            self._scores.append(self.controller.score)
        return wanted

    def _block(self, forward: Forward, feed: Tensor, size: int) -> tuple[Block, Tensor, bool]:
        first, logits, states, drafted = len(self._tokens), [], [], []
        for _ in range(size):
            row, state = forward(feed)
            row = row[: self.vocab_size]
            token, q = self._pick(row)
            feed = token[None, None]
            logits.append(row)
            states.append(state)
            drafted.append((token, q))
            self._drawn += 1
        tokens = torch.stack([token for token, _ in drafted]).tolist()  # the block's one host sync
        stop = next((i for i, token in enumerate(tokens) if token in self.request.stop_ids), None)
        if stop is not None:  # nothing follows a stop id, so what was drawn behind it may be dropped unseen
            self._drawn -= len(tokens) - stop - 1
            tokens = tokens[: stop + 1]
        self._tokens += tokens
        self._lengths.append(len(tokens))
        self._q += [q for _, q in drafted[: len(tokens)] if q is not None]
        if self.branching is not None:
            self._branch(self.branching, tokens, torch.stack(logits[: len(tokens)]))
        return self._signals(first, tokens, logits[: len(tokens)], states[: len(tokens)]), feed, stop is not None

    def _pick(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.request.sampling.greedy:
            best = logits.argmax()
            return best if self.scored is None else self.scored[best], None
        few = probabilities(logits, self.request.sampling)
        at = slice(len(few)) if self.scored is None else self.scored
        q = few.new_zeros(self.vocab_size)
        q[at] = few
        return torch.tensor(self.request.draws.categorical(q), device=logits.device), q

    def _branch(self, branching: Branching, tokens: list[int], logits: Tensor) -> None:
        """Note the siblings of new spine tokens: the next best ones, or draws without replacement when sampling."""
        assert self.scored is None, "trees are drafted by models that score every token"
        rows = logits.softmax(-1)
        best = rows.topk(max(branching.widths), dim=-1).indices.tolist()
        for depth, token in enumerate(tokens):
            prob = float(rows[depth, token])
            wanted = branching.width(prob) - 1
            if self.request.sampling.greedy:
                others = [other for other in best[depth] if other != token][:wanted]
            else:
                others = self._draw_others(self._q[len(self._q) - len(tokens) + depth], token, wanted)
            self._probs.append(prob)
            self._siblings.append(others)

    def _draw_others(self, q: Tensor, token: int, count: int) -> list[int]:
        left = q.clone()
        left[token] = 0.0
        others: list[int] = []
        while len(others) < count and float(left.sum()) > 0.0:
            others.append(self.request.draws.categorical(left))
            left[others[-1]] = 0.0
        return others

    def _signals(self, first: int, tokens: list[int], logits: list[Tensor], states: list[Tensor]) -> Block:
        block, wanted = Block(first, list(tokens), past=self.past), self.controller.signals
        if not wanted:
            return block
        rows = (torch.stack(logits), torch.stack(states))
        return with_signals(block, wanted, self.request.sampling, *rows, scored=self.scored)

    def _finished(self, reason: str) -> Draft:
        count = len(self._tokens)
        assert count == self._drawn == sum(self._lengths), "every drafted token is submitted"
        assert self.request.sampling.greedy or len(self._q) == count, "every drawn token brings its distribution"
        tokens, parents, q_row = list(self._tokens), list(range(-1, count - 1)), list(range(count))
        room = self.branching.room(count) if self.branching else 0
        for depth, others in enumerate(self._siblings):
            others = others[:room]
            room -= len(others)
            tokens += others
            parents += [depth - 1] * len(others)
            q_row += [depth] * len(others)
        return Draft(
            tokens=torch.tensor(tokens, device=self.request.target.decoder.device),
            parents=tuple(parents) if len(tokens) > count else None,
            q=torch.stack(self._q) if self._q else None,
            q_row=tuple(q_row) if self._q else None,
            spine=count,
            info=self._info(reason),
        )

    def _info(self, reason: str) -> dict[str, Any]:
        drafting = {
            "stop_reason": reason,
            "block_lengths": tuple(self._lengths),
            "block_scores": tuple(self._scores),
        }
        drafting |= self.controller.notes()
        return drafting | ({"probs": self._probs} if self._probs else {})
