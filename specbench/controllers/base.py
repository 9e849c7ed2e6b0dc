"""What every controller shares: a cap, a block size, and doing nothing where a rule has nothing to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from specbench.decoding.protocol import Block, Request
from specbench.types import Verdict


@dataclass
class ControllerBase:
    """Drafts `num_draft_tokens` tokens a step, asked after every block of `block_size`."""

    num_draft_tokens: int
    block_size: int = 1
    signals: ClassVar[frozenset[str]] = frozenset()

    def begin(self, request: Request) -> None:
        return None

    def start_step(self, budget: int) -> int:
        return min(budget, self.num_draft_tokens)

    def more(self, block: Block) -> bool:
        return True

    def end_step(self, drafted: int, verdict: Verdict) -> None:
        return None

    def reset(self) -> None:
        return None
