"""Speed and time, from timed rows only. T = seconds, N = emitted tokens, q = a conversation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from specbench.analysis.rows import arm, floats, pair, ratio, timed_conversations
from specbench.analysis.stats import Array, Interval, bca_interval, mean, ratio_of_sums
from specbench.results.schema import BASELINE, METHOD
from specbench.results.specbench_files import CountTokens

NOISY = 0.10  # the median of ratios and the ratio of sums may differ by this share
PHASES = ("draft_s", "verify_s", "adapt_s", "host_s")


def each_speedup(seconds_ar: Array, tokens_ar: Array, seconds: Array, tokens: Array) -> Array:
    """The speedup of every conversation [q]."""
    return (seconds_ar / tokens_ar) / (seconds / tokens)


def disagree(each: Array, pooled: float) -> bool:
    """Whether the median speedup is so far from the pooled one that the conversations count as noisy."""
    return abs(float(np.median(each)) / pooled - 1) > NOISY


def ratio_of_means_speedup(
    tokens: ArrayLike, seconds: ArrayLike, tokens_ar: ArrayLike, seconds_ar: ArrayLike
) -> float | None:
    """mean_q(N/T) / mean_q(N_ar/T_ar): Spec-Bench's aggregate; which counts go in decides whether it is biased."""
    rates = np.asarray(tokens, dtype=np.float64) / np.asarray(seconds, dtype=np.float64)
    rates_ar = np.asarray(tokens_ar, dtype=np.float64) / np.asarray(seconds_ar, dtype=np.float64)
    return ratio(rates.mean(), rates_ar.mean()) if len(rates) and len(rates_ar) else None


def speedup_metrics(rows: pd.DataFrame, *, count_tokens: CountTokens | None = None, seed: int = 0) -> dict[str, Any]:
    """All speedups over AR; every value is None without timed pairs.

    - walltime_speedup: (sum T_ar / sum N_ar) / (sum T / sum N) on decode_s, ci_low and ci_high: BCa over q
    - end_to_end_speedup: the same on prefill_s + decode_s
    - median_speedup, mean_of_ratios_speedup (+ interval): of the ratios per q, on decode_s
    - ratio_of_means_speedup: mean_q(N/T) / mean_q(N_ar/T_ar) on prefill_s + decode_s
    - speedup_specbench: the same with AR's tokens counted as Spec-Bench does; None without `count_tokens`
    - noisy: median_speedup is more than 10 % away from walltime_speedup
    """
    pairs = pair(rows)
    table = timed_conversations(pairs)
    if table.empty:
        return dict.fromkeys(_SPEEDUPS) | {"num_timed": 0, "noisy": False}
    tokens_ar, tokens = floats(table["tokens_ar"]), floats(table["tokens"])
    decode = (floats(table["decode_s_ar"]), tokens_ar, floats(table["decode_s"]), tokens)
    total = (floats(table["total_s_ar"]), tokens_ar, floats(table["total_s"]), tokens)
    ratios, walltime = each_speedup(*decode), float(ratio_of_sums(*decode))
    return {
        "num_timed": len(table),
        "walltime_speedup": walltime,
        **_interval("", bca_interval(ratio_of_sums, decode, seed=seed)),
        "end_to_end_speedup": float(ratio_of_sums(*total)),
        "median_speedup": float(np.median(ratios)),
        "mean_of_ratios_speedup": float(ratios.mean()),
        **_interval("mean_of_ratios_", bca_interval(mean, [ratios], seed=seed)),
        "ratio_of_means_speedup": ratio_of_means_speedup(total[3], total[2], total[1], total[0]),
        "speedup_specbench": _specbench(pairs, table, count_tokens),
        "noisy": disagree(ratios, walltime),
    }


_SPEEDUPS = (
    "walltime_speedup",
    "ci_low",
    "ci_high",
    "end_to_end_speedup",
    "median_speedup",
    "mean_of_ratios_speedup",
    "mean_of_ratios_ci_low",
    "mean_of_ratios_ci_high",
    "ratio_of_means_speedup",
    "speedup_specbench",
)


def _interval(prefix: str, interval: Interval | None) -> dict[str, float | None]:
    low, high = interval or (None, None)
    return {f"{prefix}ci_low": low, f"{prefix}ci_high": high}


def _specbench(pairs: pd.DataFrame, table: pd.DataFrame, count_tokens: CountTokens | None) -> float | None:
    """AR's tokens are recounted from its text, minus one a turn: slightly above 1 for AR against itself."""
    if count_tokens is None or pairs["text_ar"].isna().any():
        return None
    recounted = pairs["text_ar"].map(lambda text: count_tokens(text.strip()) - 1)
    tokens_ar = recounted.groupby(pairs["sample_id"]).sum().reindex(table.index)
    return ratio_of_means_speedup(table["tokens"], table["total_s"], tokens_ar, table["total_s_ar"])


def time_metrics(rows: pd.DataFrame) -> dict[str, Any]:
    """Rates, latencies and seconds of the timed rows, the method's and (`baseline_`) AR's.

    tokens_per_second = sum N / sum decode_s and tpot_s its inverse; ttft_s = mean a turn; P50 and P95 of ttft over
    turns, of tpot over conversations; prefill_s ... host_s are sums, their `_share` is of decode_s.
    """
    timed = rows[rows["timed"]]
    own = _arm_times(arm(timed, METHOD))
    baseline = _arm_times(arm(timed, BASELINE))
    return own | {f"baseline_{name}": baseline[name] for name in ("tokens_per_second", "tpot_s", "ttft_s")}


def _arm_times(rows: pd.DataFrame) -> dict[str, Any]:
    tokens, decode, ttft = (floats(rows[name]) for name in ("num_tokens", "decode_s", "ttft_s"))
    per_conversation = pd.DataFrame({"n": tokens, "t": decode}).groupby(rows["sample_id"].to_numpy()).sum()
    result: dict[str, Any] = {
        "tokens_per_second": ratio(tokens.sum(), decode.sum()),
        "tpot_s": ratio(decode.sum(), tokens.sum()),
        **_percentiles("tpot", per_conversation["t"] / per_conversation["n"]),
        "ttft_s": float(ttft.mean()) if len(ttft) else None,
        **_percentiles("ttft", ttft),
    }
    for name in ("prefill_s", "decode_s", *PHASES):
        result[name] = _total(rows[name])
    for name in PHASES:
        result[name.replace("_s", "_share")] = None if result[name] is None else ratio(result[name], decode.sum())
    return result


def _total(column: pd.Series) -> float | None:
    """The sum, or None where any row has no value: half a sum would look like a fast phase."""
    values = floats(column)
    return None if not len(values) or np.isnan(values).any() else float(values.sum())


def _percentiles(name: str, values: ArrayLike) -> dict[str, float | None]:
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    p50, p95 = (float(v) for v in np.percentile(known, [50, 95])) if len(known) else (None, None)
    return {f"{name}_p50_s": p50, f"{name}_p95_s": p95}


def cost_ratio(rows: pd.DataFrame) -> float | None:
    """(sum draft_s / sum num_tree_tokens) / (sum T_ar / sum N_ar): a drafted token's price in AR tokens.

    Timed pairs only. Drafting that proposed nothing is paid too. None when nothing was drafted or without AR.
    """
    pairs = pair(rows)
    pairs = pairs[pairs["timed"] & pairs["timed_ar"]]
    price = ratio(floats(pairs["draft_s"]).sum(), floats(pairs["num_tree_tokens"]).sum())
    ar_price = ratio(floats(pairs["decode_s_ar"]).sum(), floats(pairs["num_tokens_ar"]).sum())
    return None if price is None or ar_price is None else ratio(price, ar_price)
