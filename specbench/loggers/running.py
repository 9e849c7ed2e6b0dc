"""Totals of the conversations decoded so far: what a progress bar and a live chart show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import pyarrow as pa

from specbench.analysis.rows import arm, counted, floats, outcomes, pair, ratio, timed_conversations
from specbench.results.schema import KEY, METHOD, TABLES, to_frame

_COUNTS = ("num_tokens", "num_steps", "num_draft_tokens", "num_accepted_spine")
_COLUMNS = (*KEY, "used", "timed", "finish_reason", "prefill_s", "decode_s", *_COUNTS)
_SCHEMA = pa.schema([TABLES["samples"].field(name) for name in _COLUMNS])


@dataclass
class Running:
    """Sums over whole conversations, counted as `summarise` counts them: the same rows enter, so the same rates come.

    Sums and not rows are kept, because every rate is a ratio of sums over conversations that count or do not by
    themselves. A rate is not there until there is something to divide by.
    """

    num_samples: int = 0
    num_failed: int = 0
    sums: Counter[str] = field(default_factory=Counter)

    def add(self, samples: Iterable[Mapping[str, Any]]) -> None:
        """Count the sample rows of one or more whole conversations: both arms and all attempts."""
        self.add_frame(to_frame(pa.Table.from_pylist([dict(row) for row in samples], schema=_SCHEMA)))

    def add_frame(self, samples: pd.DataFrame) -> None:
        """The same of a samples frame."""
        found, rows = outcomes(samples), counted(samples)
        own = arm(rows, METHOD)
        timed, stepped = own[own["timed"]], own[own["num_steps"].notna()]
        pairs = timed_conversations(pair(rows))
        self.num_samples += len(found.recorded)
        self.num_failed += len(found.failed)
        self.sums.update(_sums("own", timed, "num_tokens", "decode_s"))
        self.sums.update(_sums("paired", pairs, "tokens", "decode_s", "tokens_ar", "decode_s_ar"))
        self.sums.update(_sums("steps", stepped, "num_tokens", "num_steps"))
        self.sums.update(_sums("spine", own[own["num_draft_tokens"].notna()], "num_draft_tokens", "num_accepted_spine"))

    def metrics(self) -> dict[str, float]:
        """tokens_per_second, acceptance_rate, mat and walltime_speedup, as far as they are defined by now."""
        seconds_ar = self._ratio("paired.decode_s_ar", "paired.tokens_ar")
        seconds = self._ratio("paired.decode_s", "paired.tokens")
        named = {
            "tokens_per_second": self._ratio("own.num_tokens", "own.decode_s"),
            "acceptance_rate": self._ratio("spine.num_accepted_spine", "spine.num_draft_tokens"),
            "mat": self._ratio("steps.num_tokens", "steps.num_steps"),
            "walltime_speedup": ratio(seconds_ar, seconds) if seconds_ar and seconds else None,
        }
        return {name: value for name, value in named.items() if value is not None}

    def _ratio(self, numerator: str, denominator: str) -> float | None:
        return ratio(self.sums[numerator], self.sums[denominator])


def _sums(of: str, rows: pd.DataFrame, *columns: str) -> Counter[str]:
    return Counter({f"{of}.{name}": float(floats(rows[name]).sum()) for name in columns})
