"""Confidence intervals over conversations: BCa bootstrap of a ratio of sums and of a paired difference.

Source of the method: Efron, "Better bootstrap confidence intervals", JASA 1987, as implemented in scipy.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

MIN_CONVERSATIONS = 8
RESAMPLES = 9999
CONFIDENCE = 0.95

Array = NDArray[np.float64]


class Interval(NamedTuple):
    """A two-sided confidence interval."""

    low: float
    high: float


class Difference(NamedTuple):
    """Mean of paired differences, with an interval from MIN_CONVERSATIONS on."""

    mean: float
    interval: Interval | None


def bca_interval(statistic: Callable[..., Any], columns: Sequence[ArrayLike], *, seed: int = 0) -> Interval | None:
    """95 % interval of `statistic(*columns, axis=...)` when conversations (the rows) are drawn anew.

    `columns`: arrays of one length, kept together row by row. None below 8 conversations. A statistic that every
    resample leaves unchanged gives an interval without width.
    """
    data = [np.asarray(column, dtype=np.float64) for column in columns]
    if len(data[0]) < MIN_CONVERSATIONS:
        return None
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # scipy warns of degenerate data, which is handled below
        result = stats.bootstrap(
            data,
            statistic,
            paired=True,
            vectorized=True,
            method="BCa",
            n_resamples=RESAMPLES,
            confidence_level=CONFIDENCE,
            batch=1000,
            rng=np.random.default_rng(seed),
        )
    low, high = result.confidence_interval
    if np.isfinite(low) and np.isfinite(high):
        return Interval(float(low), float(high))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(result.bootstrap_distribution, [tail, 1 - tail])  # no skewness to correct for
    return Interval(float(low), float(high))


def ratio_of_sums(seconds_ar: Array, tokens_ar: Array, seconds: Array, tokens: Array, axis: int = -1) -> Any:
    """(sum T_ar / sum N_ar) / (sum T / sum N): how many times faster a token is than AR's."""
    per_token_ar = np.sum(seconds_ar, axis=axis) / np.sum(tokens_ar, axis=axis)
    return per_token_ar / (np.sum(seconds, axis=axis) / np.sum(tokens, axis=axis))


def mean(values: Array, axis: int = -1) -> Any:
    """The mean, with the axis the bootstrap asks for."""
    return np.mean(values, axis=axis)


def paired_difference(values: ArrayLike, baseline: ArrayLike, *, seed: int = 0) -> Difference | None:
    """Mean of values - baseline over conversations, row by row; None without rows."""
    differences = np.asarray(values, dtype=np.float64) - np.asarray(baseline, dtype=np.float64)
    if not len(differences):
        return None
    return Difference(float(differences.mean()), bca_interval(mean, [differences], seed=seed))
