"""Tokens per time: the formula, its ties, the bound on acceptance, and the two cost models."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from specbench.hardware.latency import LatencyModel
from specbench.hardware.profile import VerifyCurve
from specbench.methods.draft_plan import Choice, CostModel, Costs, Floats, acceptance_rates, first_best, tokens_per_time

LATENCY = LatencyModel(attention_slope=0.001, attention_base=0.4, mlp=0.5, head=2.0, fixed=1.0)


def test_expected_tokens_over_time() -> None:
    costs = Costs(np.array([0.5, 0.5]), np.array([1.0, 1.2, 1.4]))
    rates = tokens_per_time([0.5, 1.0], costs)
    assert rates[0] == pytest.approx([1.0, 1.5 / 1.7, 1.75 / 2.4])
    assert rates[1] == pytest.approx([1.0, 2 / 1.7, 3 / 2.4])


def test_the_published_costs_count_sublayers_only() -> None:
    costs = CostModel(LATENCY, 4)(100, [frozenset(), frozenset({2, 3, 4})], 2)
    assert list(costs.draft) == pytest.approx([4 * 0.5 + 4 * 0.5, 2 * 0.5 + 3 * 0.5])
    assert list(costs.verify) == pytest.approx([4.0] * 3)
    assert costs.plain_rate == pytest.approx(0.25)


def test_the_measured_costs_count_head_fixed_time_and_what_wide_passes_cost() -> None:
    curve = VerifyCurve({1: 10.0, 2: 10.5, 3: 12.0})
    costs = CostModel(LATENCY, 4, curve)(100, [frozenset({2, 3, 4})], 2)
    assert list(costs.draft) == pytest.approx([5.5])
    assert list(costs.verify) == pytest.approx([7.0, 7.5, 9.0])


def test_a_curve_that_falls_makes_no_wide_pass_cheaper() -> None:
    costs = CostModel(LATENCY, 4, VerifyCurve({1: 10.0, 4: 9.0}))(0, [frozenset()], 3)
    assert min(costs.verify) == costs.verify[0]


def place(rates: Floats, lengths: tuple[int, int], first: int = 0) -> tuple[int, int]:
    chosen = first_best(rates, lengths, first=first)
    return chosen.index, chosen.length


def test_ties_go_to_the_earlier_candidate_then_to_the_shorter_draft() -> None:
    rates = np.array([[1.0, 1.0 + 1e-15, 0.5], [1.0, 1.0, 1.0]])
    assert place(rates, (0, 2)) == (0, 0)
    assert place(rates, (1, 2)) == (0, 1)
    assert place(rates, (0, 2), first=1) == (1, 0)
    rates[1, 2] += 1e-6
    assert place(rates, (0, 2)) == (1, 2)


def test_without_a_candidate_to_choose_from_the_last_one_stays() -> None:
    assert first_best(np.array([[1.0, 2.0]]), (0, 1), first=1) == Choice(0, 0, None)


def test_an_estimate_is_the_share_and_a_bound_is_below_it() -> None:
    assert acceptance_rates([0, 15, 30], 30, "mean") == [0.0, 0.5, 1.0]
    lower = acceptance_rates([0, 15, 30], 30, "lower")
    assert lower[2] == pytest.approx(0.2 ** (1 / 31))  # all of 30 agree
    assert 0.0 < lower[0] < 0.01
    assert 0.4 < lower[1] < 0.5
    assert acceptance_rates([5], 5, "lower")[0] < acceptance_rates([30], 30, "lower")[0]


def test_the_bound_holds_four_times_of_five() -> None:
    """With a chance drawn uniformly, the bound is below it in 80 % of all cases: exactly, by summing over both."""
    rows = 12
    bounds = acceptance_rates(range(rows + 1), rows, "lower")
    chances = (np.arange(4000) + 0.5) / 4000
    likely = binom.pmf(np.arange(rows + 1)[:, None], rows, chances)
    holds = (np.array(bounds)[:, None] <= chances) * likely
    assert float(holds.sum() / len(chances)) == pytest.approx(0.8, abs=1e-3)
