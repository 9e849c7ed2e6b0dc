"""The additive schedule of assisted generation: longer after full acceptance, shorter otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field

from specbench.controllers.base import ControllerBase
from specbench.types import Verdict


@dataclass
class Heuristic(ControllerBase):
    """Starts at `start`, `grow` more when every draft token was accepted, else `shrink` fewer, within [1, cap].

    The length lives as long as `method.scope` says. Source: the `heuristic` schedule of the transformers library
    (5, +2, -1, no cap), whose newer releases carry the length over to the next prompt (scope=run) and whose older ones
    and `heuristic_transient` do not (scope=sample). SVIP's copy has a cap of 40.
    """

    num_draft_tokens: int | None = 20  # type: ignore[assignment]  # None = no cap
    start: int = 5
    grow: int = 2
    shrink: int = 1
    _length: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.reset()

    def start_step(self, budget: int) -> int:
        cap = min(budget, self._length)
        self.block_size = max(1, cap)
        return cap

    def end_step(self, drafted: int, verdict: Verdict) -> None:
        if drafted == 0:
            return
        change = self.grow if verdict.num_accepted_spine == drafted else -self.shrink
        self._length = max(1, self._length + change)
        if self.num_draft_tokens is not None:
            self._length = min(self._length, self.num_draft_tokens)

    def reset(self) -> None:
        self._length = self.start
