"""Which skip set and how many draft tokens give the most tokens per time: KnapSpec's joint choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from specbench.hardware.latency import LatencyModel
from specbench.hardware.profile import VerifyCurve, seconds

_TIE = 1e-12  # relative; below it two values differ by rounding only
_TAIL = 0.2  # the bound holds with a probability of 80 %

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Choice:
    """A candidate, the draft length that goes with it, and the tokens per second that are expected of them."""

    index: int
    length: int
    rate: float | None


@dataclass(frozen=True)
class Costs:
    """Seconds: `draft` [C] of one drafted token, `verify` [D + 1] of a target pass over d + 1 tokens, d = 0..D."""

    draft: Floats
    verify: Floats

    @property
    def plain_rate(self) -> float:
        """Tokens per second of decoding without a draft."""
        return float(1.0 / self.verify[0])


@dataclass(frozen=True)
class CostModel:
    """What passes cost at a context. Without a `curve` as published: only sublayers cost time, and verifying costs one
    full pass whatever the draft's length. With it, head and fixed time of every pass count, and verifying d + 1 tokens
    costs as much more than one token as was measured.
    """

    latency: LatencyModel
    num_layers: int
    curve: VerifyCurve | None = None

    def __call__(self, context: int, skips: Sequence[frozenset[int]], most: int) -> Costs:
        """Costs of drafting with each skip set, and of verifying drafts of up to `most` tokens."""
        draft = [self.draft(context, skip) for skip in skips]
        return Costs(np.array(draft), np.array([self.verify(context, d) for d in range(most + 1)]))

    def verify(self, context: int, drafted: int) -> float:
        """Seconds of a target pass over the root and `drafted` tokens."""
        full = self._rest + self._kept(frozenset(), context)
        if self.curve is None:
            return full
        return full + max(0.0, seconds(self.curve, drafted + 1) - seconds(self.curve, 1))

    def draft(self, context: int, skip: frozenset[int]) -> float:
        """Seconds of drafting one token."""
        return self._rest + self._kept(skip, context)

    @property
    def _rest(self) -> float:
        return 0.0 if self.curve is None else self.latency.head + self.latency.fixed

    def _kept(self, skip: frozenset[int], context: int) -> float:
        mlp = sum(index % 2 for index in skip)
        attention = len(skip) - mlp
        return (self.num_layers - attention) * self.latency.attention(context) + (
            self.num_layers - mlp
        ) * self.latency.mlp


def tokens_per_time(alpha: Sequence[float], costs: Costs) -> Floats:
    """[C, D + 1]: (1 + a + .. + a^d) / (d * draft + verify(d + 1)) for every candidate and draft length d."""
    lengths = np.arange(costs.verify.shape[0])
    expected = np.cumsum(np.asarray(alpha)[:, None] ** lengths, axis=1)
    return expected / (lengths * costs.draft[:, None] + costs.verify)


def first_best(rates: Floats, lengths: tuple[int, int], *, first: int = 0) -> Choice:
    """The largest rate of candidates from `first` on and lengths in a range (both ends included).

    Ties go to the earlier candidate, then to the shorter draft. Without a candidate: the last one, without a rate.
    """
    low, high = lengths
    grid = rates[first:, low : high + 1]
    if grid.size == 0:
        return Choice(rates.shape[0] - 1, low, None)
    flat = int(np.argmax(grid >= grid.max() * (1.0 - _TIE)))
    row, column = divmod(flat, grid.shape[1])
    return Choice(row + first, column + low, float(grid[row, column]))


def acceptance_rates(matches: Sequence[int], rows: int, estimate: str) -> list[float]:
    """The chance that a draft token is accepted, from agreement on `rows` positions.

    `mean` = the share; `lower` = what the chance exceeds with a probability of 80 % (a uniform prior).
    """
    if estimate == "mean":
        return [count / rows for count in matches]
    return [float(betaincinv(count + 1, rows - count + 1, _TAIL)) for count in matches]
