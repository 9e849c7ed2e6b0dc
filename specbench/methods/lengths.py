"""How many tokens of a guess are worth verifying, from what verifying costs and how often guesses were right."""

from __future__ import annotations

from dataclasses import dataclass, field

from specbench.hardware.profile import VerifyCurve, seconds

_CLASSES = (1, 2, 3, 4, 6, 10)  # match sizes that share counts: from each number up to the next
_SHRINKAGE = 4.0  # observations at which a position's own rate weighs as much as the class's


@dataclass
class _Counts:
    tried: list[float]
    accepted: list[float]


@dataclass
class LengthPlanner:
    """Chooses the length k in 0..cap that maximises expected tokens per second, E[k] / t(k + 1).

    E[k] = 1 + sum of the chances that 1, 2, ..., k tokens are all accepted. The chance at a position, given that
    all before were accepted, is counted per class of match size; `prior` is where it starts.
    """

    curve: VerifyCurve
    cap: int
    prior: float
    _counts: dict[int, _Counts] = field(init=False, default_factory=dict)
    _costs: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self._costs = [seconds(self.curve, k + 1) for k in range(self.cap + 1)]

    def length(self, match_size: int) -> int:
        """The best length for a guess whose last `match_size` tokens agreed."""
        counts = self._class(match_size)
        pooled = (sum(counts.accepted) + _SHRINKAGE * self.prior) / (sum(counts.tried) + _SHRINKAGE)
        best, best_rate = 0, 1.0 / self._costs[0]
        expected, chance = 1.0, 1.0
        for k in range(1, self.cap + 1):
            tried, accepted = counts.tried[k - 1], counts.accepted[k - 1]
            chance *= (accepted + _SHRINKAGE * pooled) / (tried + _SHRINKAGE)
            expected += chance
            if expected / self._costs[k] > best_rate:
                best, best_rate = k, expected / self._costs[k]
        return best

    def learn(self, match_size: int, *, drafted: int, accepted: int) -> None:
        """Count one verdict: every position up to the first rejection was tried."""
        counts = self._class(match_size)
        for position in range(min(drafted, accepted + 1)):
            counts.tried[position] += 1.0
            counts.accepted[position] += float(position < accepted)

    def reset(self) -> None:
        self._counts.clear()

    def _class(self, match_size: int) -> _Counts:
        key = max(lower for lower in _CLASSES if lower <= max(1, match_size))
        return self._counts.setdefault(key, _Counts([0.0] * self.cap, [0.0] * self.cap))
