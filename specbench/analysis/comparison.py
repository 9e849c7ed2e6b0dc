"""Which of several methods is the fastest, and whether the samples support saying so.

Two methods are compared on the conversations that both timed: each was decoded by both methods, and by AR right beside
each of them. So the quantity is the ratio of two speedups over AR, resampled conversation by conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd

from specbench.analysis.rows import PAIRED, counted, floats, pair, timed_conversations
from specbench.analysis.speed import disagree, each_speedup
from specbench.analysis.stats import Array, Interval, bca_interval, ratio_of_sums

AR = "ar"
RULE = (
    "Bold: the fastest of a row, only where the paired 95 % interval (BCa bootstrap over conversations) of its speedup "
    "over the runner-up's excludes 1; AR counts as 1.00. Nothing is bold below 8 common conversations."
)


class Lead(NamedTuple):
    """The fastest and the second: `interval` is of speedup(best) / speedup(runner_up), None below 8 conversations."""

    best: str
    runner_up: str
    interval: Interval | None

    @property
    def supported(self) -> bool:
        """Whether the interval excludes that both are equally fast."""
        return self.interval is not None and self.interval.low > 1


def timed_by_run(samples: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Run id -> one row a timed conversation (index sample_id; tokens, decode_s and AR's) from a frame of samples."""
    by_run = samples[["run_id", *PAIRED]].groupby("run_id", sort=False)
    return {str(run_id): timed_conversations(pair(counted(rows))) for run_id, rows in by_run}


def speedup_of(table: pd.DataFrame) -> float:
    """Speedup over AR of the conversations of one run, as `walltime_speedup`."""
    return float(ratio_of_sums(*_columns(table)))


def is_noisy(table: pd.DataFrame) -> bool:
    """Whether the median over conversations is more than 10 % away from `speedup_of`."""
    return disagree(each_speedup(*_columns(table)), speedup_of(table))


def speedup_interval(table: pd.DataFrame, *, seed: int = 0) -> Interval | None:
    """95 % interval of `speedup_of`; None below 8 conversations."""
    return bca_interval(ratio_of_sums, _columns(table), seed=seed)


def lead(tables: Mapping[str, pd.DataFrame], *, seed: int = 0, with_ar: bool = True) -> Lead | None:
    """The fastest method of `tables` (name -> conversations) against the second; AR takes part as 1 (`with_ar`).

    Each is ranked by all of its conversations; the interval is over those that both timed. None without two of them.
    """
    known = {name: table for name, table in tables.items() if name != AR and len(table)}
    if not known:
        return None
    speeds = ({AR: 1.0} if with_ar else {}) | {name: speedup_of(table) for name, table in known.items()}
    if len(speeds) < 2:
        return None
    best, runner_up = sorted(speeds, key=lambda name: -speeds[name])[:2]
    return Lead(best, runner_up, _interval(known.get(best), known.get(runner_up), seed))


def fastest(tables: Mapping[str, pd.DataFrame], *, with_ar: bool = True) -> str:
    """The name of the fastest where the comparison supports it, else an empty text."""
    found = lead(tables, with_ar=with_ar)
    return found.best if found is not None and found.supported else ""


def _interval(first: pd.DataFrame | None, second: pd.DataFrame | None, seed: int) -> Interval | None:
    """Interval of speedup(first) / speedup(second) over the same conversations; None stands for AR."""
    if first is not None and second is not None:
        common = first.index.intersection(second.index)
        first, second = first.loc[common], second.loc[common]
        return bca_interval(_ratio, [*_columns(first), *_columns(second)], seed=seed)
    if first is not None:
        return speedup_interval(first, seed=seed)
    assert second is not None
    interval = speedup_interval(second, seed=seed)
    return None if interval is None else Interval(1 / interval.high, 1 / interval.low)


def _columns(table: pd.DataFrame) -> tuple[Array, Array, Array, Array]:
    """Seconds and tokens of AR, seconds and tokens of the method."""
    return floats(table["decode_s_ar"]), floats(table["tokens_ar"]), floats(table["decode_s"]), floats(table["tokens"])


def _ratio(*columns: Array, axis: int = -1) -> Any:
    """Speedup of the first method over that of the second: two times what `_columns` gives."""
    seconds_ar, tokens_ar, seconds, tokens, *second = columns
    other_ar, other_tokens_ar, other, other_tokens = second
    first = ratio_of_sums(seconds_ar, tokens_ar, seconds, tokens, axis)
    return first / ratio_of_sums(other_ar, other_tokens_ar, other, other_tokens, axis)
