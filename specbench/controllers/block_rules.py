"""What is made of the chances that a gate gives to a block's tokens; plain numbers, so that replays need no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

_PRIOR_STEPS = 8  # how many steps the card's rate counts for in a running mean


@dataclass(frozen=True)
class BlockRule:
    """Block n goes through if its score is at least min(`most`, `threshold` * `growth` ** (n - 1)), n from 1."""

    threshold: float = 0.7
    growth: float = 1.05
    most: float = 0.95
    agg: str = "mean"

    def limit(self, number: int) -> float:
        """The smallest score with which drafting goes on after block `number` (from 1)."""
        return min(self.most, self.threshold * self.growth ** (number - 1))

    def score(self, chances: Sequence[float], survival: float) -> float:
        """One number for the chances of a block; `survival`: the product of all before. 1 where nothing is judged."""
        if not chances:
            return 1.0
        if self.agg == "mean":
            return math.fsum(chances) / len(chances)
        if self.agg in ("min", "last"):
            return min(chances) if self.agg == "min" else chances[-1]
        return math.prod(chances) * (survival if self.agg == "cumprod" else 1.0)


@dataclass
class CostRule:
    """Go on iff the tokens that another block should bring are worth more than its time at the present speed.

    Times in target passes: `draft` of a drafted token, `check` of asking the gate. `rate`: tokens a target pass' time
    to start from, then a running mean. Extrapolated: each further token survives with the last block's mean chance.
    """

    draft: float
    check: float
    rate: float
    _tokens: float = field(init=False)
    _time: float = field(init=False)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._tokens, self._time = self.rate * _PRIOR_STEPS, float(_PRIOR_STEPS)

    def learn(self, emitted: int, drafted: int, blocks: int) -> None:
        """A step was verified."""
        self._tokens += emitted
        self._time += 1.0 + drafted * self.draft + blocks * self.check

    def gain(self, chances: Sequence[float], survival: float, size: int) -> float:
        """Expected tokens of `size` more, over what they must bring; `survival` includes `chances`. Above 1: go on."""
        mean = math.fsum(chances) / len(chances) if chances else 1.0
        expected = sum(survival * mean**place for place in range(1, size + 1))
        return expected / (self._tokens / self._time * (size * self.draft + self.check))
