"""A constant number of draft tokens a step, and the absence of a controller."""

from __future__ import annotations

from dataclasses import dataclass

from specbench.controllers.base import ControllerBase


@dataclass
class FixedLength(ControllerBase):
    """Always `num_draft_tokens` tokens (or what the budget leaves). One block: nothing is looked at in between."""

    num_draft_tokens: int = 5

    def start_step(self, budget: int) -> int:
        cap = min(budget, self.num_draft_tokens)
        self.block_size = max(1, cap)
        return cap


@dataclass
class NoController(ControllerBase):
    """For methods whose drafter plans its own length."""

    num_draft_tokens: int = 0

    def start_step(self, budget: int) -> int:
        return budget
