"""What every controller shares: a cap, a block size, and doing nothing where a rule has nothing to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specbench.decoding.protocol import Block, Request
from specbench.types import Verdict


@dataclass
class ControllerBase:
    """Drafts `num_draft_tokens` tokens a step, asked after every block of `block_size`."""

    num_draft_tokens: int
    block_size: int = 1
    signals: frozenset[str] = field(init=False, default=frozenset())
    score: float | None = field(init=False, default=None)

    def begin(self, request: Request) -> None:
        return None

    def start_step(self, budget: int) -> int:
        return min(budget, self.num_draft_tokens)

    def more(self, block: Block) -> bool:
        return True

    def ended(self, block: Block) -> None:
        return None

    def notes(self) -> Mapping[str, Any]:
        return {}

    def end_step(self, drafted: int, verdict: Verdict) -> None:
        return None

    def reset(self) -> None:
        return None


def chances_note(chances: Sequence[float], *, conditional: bool) -> dict[str, list[float]]:
    """What is recorded of a classifier: the chance of each judged draft token, the first one first.

    `conditional`: that it is accepted given that all before were; otherwise that it is accepted at all.
    """
    return {"conditional_chances" if conditional else "chances": [float(chance) for chance in chances]}


@dataclass
class ScoreStop(ControllerBase):
    """Drafting ends after the first block whose score is below `limit`; what the rule doubts is verified too."""

    @property
    def limit(self) -> float:
        """The smallest score with which drafting goes on."""
        raise NotImplementedError

    def judge(self, block: Block) -> float:
        """The score of a block that was just drafted."""
        raise NotImplementedError

    def more(self, block: Block) -> bool:
        self.score = self.judge(block)
        return self.score >= self.limit
