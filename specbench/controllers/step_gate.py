"""A gate beside a draft that is being made: block by block, each row read once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.controllers.gate import NUM_SCALARS, Gate, GateRows
from specbench.controllers.heads import log_probability
from specbench.decoding.protocol import Block
from specbench.types import ConfigError


@dataclass(frozen=True)
class _Waiting:
    """Rows that are to be read before the next block's: of each its token, what predicted it, scalars and place."""

    tokens: list[int]
    before: Tensor  # [n, d]
    scalars: Tensor  # [n, 3]
    index: list[int]


class StepGate:
    """A gate beside a draft, block by block.

    With scope `step` its cache is one step's. With `context` committed rows stay in it from step to step; a step reads
    those that are new with its first block.
    """

    def __init__(self, gate: Gate, num_draft_tokens: int) -> None:
        self.gate, self.num_draft_tokens = gate, num_draft_tokens
        self.cache = gate.body.new_cache(num_draft_tokens + 1)
        self._looks_back = gate.shape.scope == "context"
        self._committed: Sequence[int] = ()
        self._known = 0  # rows of the cache that are committed ones
        self._waiting: _Waiting | None = None

    def begin(self, most_tokens: int) -> None:
        """A new prompt, which with its answer will have at most so many tokens."""
        self._known = 0
        if self._looks_back:
            self.cache = self.gate.body.reserve(self.cache, most_tokens + self.num_draft_tokens + 1)

    def restart(self, committed: Sequence[int]) -> None:
        """A step begins behind the `committed` tokens."""
        self._committed = committed
        self.cache.truncate(min(self._known, self.cache.length) if self._looks_back else 0)
        self._waiting = None

    @torch.inference_mode()
    def chances(self, block: Block) -> list[float]:
        """The chance of each drafted token that can be judged now and was not before."""
        rows = self._rows(block)
        logits = self.gate(rows, self.cache)[0]
        found: list[float] = self.gate.chances(logits[rows.index > 0]).tolist()
        return found

    def _rows(self, block: Block) -> GateRows:
        assert self._committed, "restart comes first"
        assert block.hidden is not None
        waiting = self._new_ones(block) if self._waiting is None else self._waiting
        device, count = self.gate.body.device, len(block.tokens)
        tokens = [*waiting.tokens, *block.tokens]
        before = torch.cat([waiting.before, block.hidden.float().to(device)])
        drafted = block_scalars(block).to(device) if self.gate.shape.scalars else before.new_zeros(count, NUM_SCALARS)
        numbers = torch.cat([waiting.scalars, drafted])
        index = [*waiting.index, *range(block.first + 1, block.first + count + 1)]
        last = len(tokens) - self.gate.shape.lag  # the newest token waits where its own state is needed
        self._waiting = _Waiting(tokens[last:], before[last:], numbers[last:], index[last:])
        return GateRows(
            torch.tensor([tokens[:last]], device=device),
            before[None, :last],
            before[None, 1:] if self.gate.shape.lag else None,
            numbers[None, :last],
            torch.tensor(index[:last], device=device),
        )

    def _new_ones(self, block: Block) -> _Waiting:
        """The committed rows that are not in the cache yet: the anchor, or all that came since the last step."""
        device = self.gate.body.device
        nothing = torch.zeros(1, self.gate.body.embedding.shape[1], device=device)
        tokens, before = list(self._committed[-1:]), nothing
        if self._looks_back:
            if block.past is None:
                raise ConfigError(
                    "method.controller.scope=context: this method's drafter keeps no states of what is committed; "
                    "legal here: step"
                )
            first = self.cache.length
            past = block.past[max(first - 1, 0) :].float().to(device)
            tokens, before = list(self._committed[first:]), past if first else torch.cat([nothing, past])
            self._known = len(self._committed)
        return _Waiting(tokens, before, before.new_zeros(len(tokens), NUM_SCALARS), [0] * len(tokens))


def block_scalars(block: Block) -> Tensor:
    """log q, entropy and margin [b, 3] of a block."""
    assert block.prob is not None
    assert block.entropy is not None
    assert block.margin is not None
    return torch.stack([log_probability(block.prob), block.entropy.float(), block.margin.float()], dim=-1)
