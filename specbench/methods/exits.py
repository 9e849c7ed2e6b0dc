"""What DEL knows about early exits: how often each agrees with the whole model, and what that is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench.decoding.protocol import SIGNALS, Block, Controller, Request
from specbench.decoding.target import few_rows, most_likely
from specbench.models.decoder import Decoder
from specbench.models.spec import ModelSpec
from specbench.types import Verdict


class Plan(NamedTuple):
    """Draft with the first `exit_layer` layers, `length` tokens; `value` in tokens per layer run."""

    exit_layer: int
    length: int
    value: float = 0.0


@dataclass
class ExitStatistics:
    """Hits and misses of every exit 1..`num_exits` against the last layer, and the probabilities on both.

    Older steps count `omega` times less with every step. Source: DEL (the baseline of KnapSpec's repository).
    """

    num_exits: int
    omega: float
    _counts: Tensor = field(init=False)  # [2, E]: hits, misses
    _confidences: Tensor = field(init=False)  # [2, E]: sums of probabilities on hits, on misses

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._counts = torch.zeros(2, self.num_exits, dtype=torch.float64)
        self._confidences = torch.zeros(2, self.num_exits, dtype=torch.float64)

    @property
    def empty(self) -> bool:
        return float(self._counts.sum()) == 0.0

    def learn(self, match: Tensor, prob: Tensor) -> None:
        """`match` [E, C] bool: the exit names the last layer's token at this column; `prob` [E, C] of its own token."""
        hit, prob = match.to("cpu", torch.float64), prob.to("cpu", torch.float64)
        both = torch.stack([hit, 1.0 - hit])
        self._counts = self.omega * self._counts + both.sum(-1)
        self._confidences = self.omega * self._confidences + (both * prob).sum(-1)

    def alphas(self) -> list[float]:
        """Share of hits of every exit; 0 before anything is known."""
        hits, misses = self._counts
        return [float(alpha) for alpha in (hits / (hits + misses)).nan_to_num(0.0)]

    def thresholds(self) -> list[float | None]:
        """Middle between the mean probability on hits and that on misses; None while a kind has not occurred."""
        middle = (self._confidences / self._counts).mean(0)
        return [None if value != value else value for value in middle.tolist()]


def best_plan(alphas: Sequence[float], num_layers: int, lengths: Sequence[int], *, head: float = 0.0) -> Plan:
    """The exit and length with most expected tokens per layer run; the earliest exit and then length wins a tie.

    Expected tokens are 1 + a + ... + a^length; a draft token costs `exit_layer` layers, verification all of them once,
    and both the `head`, in layers (0 = as published).
    """

    def cost(exit_layer: int, length: int) -> float:
        return length * (exit_layer + head) + num_layers + head

    plans = (
        Plan(exit_layer, length, sum(alpha**k for k in range(length + 1)) / cost(exit_layer, length))
        for exit_layer, alpha in enumerate(alphas, start=1)
        for length in lengths
    )
    return max(plans, key=lambda plan: plan.value)  # the first of equals


def head_in_layers(spec: ModelSpec) -> float:
    """How many layers the head weighs, by the number of weights in their projections."""
    attention = 2 * spec.head_dim * (spec.num_heads + spec.num_kv_heads)
    return spec.vocab_size / (attention + 3 * spec.intermediate_size)


def read_out(decoder: Decoder, states: Tensor, *, chunk_rows: int) -> tuple[Tensor, Tensor]:
    """The most probable token [R] and its probability [R] if the residual stream [R, d] went to the head now.

    At most `chunk_rows` rows of logits exist at once.
    """
    tokens, probs = [], []
    for rows in states.split(chunk_rows):
        logits = decoder.head(decoder.final_norm(rows))
        largest, token = most_likely(logits)
        tokens.append(token)
        probs.append((largest - torch.cat([part.logsumexp(-1) for part in few_rows(logits)])).exp())
    return torch.cat(tokens), torch.cat(probs)


@dataclass
class ThresholdStop:
    """`controller`, and a stop after the first token with probability below `threshold`: both must want more.

    The controller sees blocks of the size that it asks for, whatever the threshold needs to see.
    """

    controller: Controller
    threshold: float
    block_size: int = 1
    signals: frozenset[str] = field(init=False)
    score: float | None = field(init=False, default=None)
    _waiting: list[Block] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.signals = self.controller.signals | {"prob"}

    def begin(self, request: Request) -> None:
        self.controller.begin(request)

    def start_step(self, budget: int) -> int:
        self._waiting = []
        return self.controller.start_step(budget)

    def more(self, block: Block) -> bool:
        assert block.prob is not None
        self.score = float(block.prob.min())
        if self.score < self.threshold:
            self.ended(block)
            return False
        self._waiting.append(block)
        if sum(len(part.tokens) for part in self._waiting) < self.controller.block_size:
            return True
        whole, self._waiting = joined(self._waiting), []
        return self.controller.more(whole)

    def ended(self, block: Block) -> None:
        self.controller.ended(joined([*self._waiting, block]))
        self._waiting = []

    def notes(self) -> Mapping[str, Any]:
        return self.controller.notes()

    def end_step(self, drafted: int, verdict: Verdict) -> None:
        self.controller.end_step(drafted, verdict)

    def reset(self) -> None:
        self.controller.reset()


def joined(blocks: Sequence[Block]) -> Block:
    """Blocks that follow one another as one."""
    signals = {name: [getattr(block, name) for block in blocks] for name in SIGNALS}
    return Block(
        blocks[0].first,
        [token for block in blocks for token in block.tokens],
        **{name: torch.cat(parts) for name, parts in signals.items() if parts[0] is not None},
    )
