from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from specbench.analysis.stats import MIN_CONVERSATIONS, bca_interval, mean, paired_difference, ratio_of_sums


def draws(n: int, seed: int = 1):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(50, 200, n).astype(float)
    return [tokens * rng.uniform(0.9, 1.1, n), tokens, tokens * rng.uniform(0.4, 0.8, n), tokens]


def test_ratio_of_sums_by_hand():
    # AR: 6 s for 30 tokens = 0.2; method: 5 s for 50 tokens = 0.1.
    assert ratio_of_sums([2.0, 4.0], [10, 20], [1.0, 4.0], [25, 25]) == pytest.approx(2.0)


def test_the_interval_holds_the_estimate_and_repeats():
    data = draws(20)
    low, high = bca_interval(ratio_of_sums, data, seed=3)
    assert low < ratio_of_sums(*data) < high
    assert (low, high) == bca_interval(ratio_of_sums, data, seed=3)
    assert (low, high) != bca_interval(ratio_of_sums, data, seed=4)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    hits = 0
    for seed in range(40):
        values = np.random.default_rng(seed).exponential(1.0, 60)
        low, high = bca_interval(mean, [values], seed=seed)
        hits += low <= 1.0 <= high
    assert 33 <= hits <= 40


def test_it_is_wider_with_fewer_conversations():
    wide, narrow = bca_interval(ratio_of_sums, draws(10)), bca_interval(ratio_of_sums, draws(160))
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


@pytest.mark.parametrize("n", [0, 1, MIN_CONVERSATIONS - 1])
def test_no_interval_below_eight(n):
    assert bca_interval(ratio_of_sums, draws(n)) is None


def test_equal_conversations_give_an_interval_without_width():
    ones = np.ones(9)
    assert bca_interval(ratio_of_sums, [2 * ones, ones, ones, ones]) == (2.0, 2.0)
    assert bca_interval(mean, [np.zeros(9)]) == (0.0, 0.0)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(0.1, 10), min_size=8, max_size=20), st.floats(0.1, 10))
def test_equal_ratios_give_that_ratio(seconds, factor):
    t, n = np.array(seconds), np.ones(len(seconds))
    low, high = bca_interval(ratio_of_sums, [t * factor, n, t, n])
    assert low == pytest.approx(factor)
    assert high == pytest.approx(factor)


def test_paired_difference_by_hand():
    assert paired_difference([], []) is None
    difference = paired_difference([1.0, 0.0, 1.0], [0.0, 0.0, 1.0])
    assert difference.mean == pytest.approx(1 / 3)
    assert difference.interval is None


def test_paired_difference_uses_the_pairing():
    rng = np.random.default_rng(0)
    base = rng.normal(0, 10, 40)
    difference = paired_difference(base + 1 + rng.normal(0, 0.1, 40), base)
    assert 0.9 < difference.interval.low < difference.mean < difference.interval.high < 1.1
    t = scipy_stats.t.interval(0.95, 39, loc=0, scale=10 / np.sqrt(40))
    assert difference.interval.high - difference.interval.low < 0.1 * (t[1] - t[0])
