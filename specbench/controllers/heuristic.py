"""The additive schedule of assisted generation: longer after full acceptance, shorter otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field

from specbench.controllers.base import ControllerBase
from specbench.types import Verdict


@dataclass
class Heuristic(ControllerBase):
    """Starts at `start`, `grow` more when every draft token was accepted, else `shrink` fewer, within [1, cap].

    The length lives as long as `method.scope` says. Source: the `heuristic` schedule of the transformers library
    (5, +2, -1), whose newer releases carry the length over to the next prompt (scope=run) and whose older ones do
    not (scope=sample).
    """

    num_draft_tokens: int = 20
    start: int = 5
    grow: int = 2
    shrink: int = 1
    _length: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.reset()

    def start_step(self, budget: int) -> int:
        cap = min(budget, self.num_draft_tokens, self._length)
        self.block_size = max(1, cap)
        return cap

    def end_step(self, drafted: int, verdict: Verdict) -> None:
        if drafted == 0:
            return
        change = self.grow if verdict.num_accepted_spine == drafted else -self.shrink
        self._length = min(self.num_draft_tokens, max(1, self._length + change))

    def reset(self) -> None:
        self._length = self.start
