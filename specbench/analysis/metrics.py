"""The summary of one run: every metric, from its stored rows."""

from __future__ import annotations

from typing import Any

import pandas as pd

from specbench.analysis.acceptance import acceptance_metrics
from specbench.analysis.exactness import exactness_metrics
from specbench.analysis.quality import quality_metrics
from specbench.analysis.rows import arm, counted, outcomes
from specbench.analysis.skipping import UnitOf, skipping_metrics
from specbench.analysis.speed import cost_ratio, speedup_metrics, time_metrics
from specbench.results.schema import BASELINE, METHOD
from specbench.results.specbench_files import CountTokens


def summarise(
    samples: pd.DataFrame,
    steps: pd.DataFrame,
    choices: pd.DataFrame | None = None,
    *,
    dtype: str | None = None,
    count_tokens: CountTokens | None = None,
    unit_of: UnitOf | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """All metrics of a run as plain numbers; formulas stand beside the functions that this one calls.

    `choices`: None for a method that chooses nothing, so that `num_choices` 0 means a search that never ran.
    `unit_of` names the samples that learn together; None = each conversation learns for itself.
    `count_tokens`: length of the tokenizer's encoding of a text, for `speedup_specbench`. Conversations with a failed
    or skipped turn, and attempts not marked `used`, enter no number.
    """
    rows, ended = counted(samples), outcomes(samples)
    return {
        "dtype": dtype,
        "num_samples": len(ended.recorded),
        "num_measured": len(ended.measured),
        "num_failed": len(ended.failed),
        "num_skipped": len(ended.skipped),
        "num_turns": len(arm(rows, METHOD)[["sample_id", "turn"]].drop_duplicates()),
        **speedup_metrics(rows, count_tokens=count_tokens, seed=seed),
        **time_metrics(rows),
        "cost_ratio": cost_ratio(rows),
        **acceptance_metrics(rows, steps),
        **exactness_metrics(rows),
        **quality_metrics(rows, seed=seed),
        "peak_memory_bytes": _peak(arm(rows, METHOD)),
        "baseline_peak_memory_bytes": _peak(arm(rows, BASELINE)),
        **skipping_metrics(rows, steps, choices, unit_of=unit_of, seed=seed),
    }


def _peak(rows: pd.DataFrame) -> int | None:
    column = rows["peak_memory_bytes"].dropna()
    return int(column.max()) if len(column) else None
