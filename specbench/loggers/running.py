"""Totals of the conversations decoded so far: what a progress bar and a live chart show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from specbench.results.schema import BASELINE, METHOD, WITHOUT_NUMBERS


@dataclass
class _Arm:
    tokens: int = 0
    seconds: float = 0.0

    def rate(self) -> float | None:
        return self.tokens / self.seconds if self.seconds > 0 else None


@dataclass
class Running:
    """Sums over used rows; a rate is None until there is something to divide by."""

    arms: dict[str, _Arm] = field(default_factory=lambda: {METHOD: _Arm(), BASELINE: _Arm()})
    num_draft_tokens: int = 0
    num_accepted: int = 0
    num_steps: int = 0
    num_step_tokens: int = 0  # tokens of the rows that have steps
    num_errors: int = 0

    def add(self, samples: Iterable[Mapping[str, Any]]) -> None:
        """Count sample rows; rows of attempts that were repeated do not count, failed ones only as errors."""
        for row in samples:
            if not row["used"]:
                continue
            if row["finish_reason"] in WITHOUT_NUMBERS:
                self.num_errors += row["finish_reason"] == "error"
                continue
            arm = self.arms[row["arm"]]
            arm.tokens += row["num_tokens"] or 0
            arm.seconds += row["decode_s"] or 0.0
            if row["arm"] == METHOD:
                self._add_steps(row)

    def _add_steps(self, row: Mapping[str, Any]) -> None:
        self.num_draft_tokens += row.get("num_draft_tokens") or 0
        self.num_accepted += row.get("num_accepted_spine") or 0
        if row.get("num_steps"):
            self.num_steps += row["num_steps"]
            self.num_step_tokens += row["num_tokens"] or 0

    def metrics(self) -> dict[str, float]:
        """tokens_per_second, acceptance_rate, mat and walltime_speedup, as far as they are defined by now."""
        own, baseline = (self.arms[name].rate() for name in (METHOD, BASELINE))
        speedup = own / baseline if own is not None and baseline else None
        acceptance = self.num_accepted / self.num_draft_tokens if self.num_draft_tokens else None
        mat = self.num_step_tokens / self.num_steps if self.num_steps else None
        named = {"tokens_per_second": own, "acceptance_rate": acceptance, "mat": mat, "walltime_speedup": speedup}
        return {name: value for name, value in named.items() if value is not None}
