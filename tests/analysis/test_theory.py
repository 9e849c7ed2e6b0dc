from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.analysis.theory import (
    alpha_from_rate,
    break_even_acceptance,
    expected_tokens,
    predicted_speedup,
    step_cost,
    worth_it,
)
from specbench.hardware.profile import VerifyCurve

CURVE = VerifyCurve({1: 0.020, 5: 0.024, 9: 0.032})
SUMMARY = {
    "walltime_speedup": 1.8, "ci_low": 1.6, "ci_high": 2.0, "mat": 3.0, "acceptance_rate": 0.5, "cost_ratio": 0.1,
    "tree_tokens_per_step": 4.0, "draft_tokens_per_step": 4.0, "verify_rows_histogram": [[5, 10]],
    "drafted_nothing": False, "num_choices": None,
}  # fmt: skip


def test_expected_tokens_by_hand():
    assert expected_tokens(0.5, 2) == pytest.approx(1.75)
    assert expected_tokens(1.0, 4) == 5
    assert expected_tokens(0.0, 4) == 1


@given(st.floats(0.01, 0.99), st.integers(1, 20))
def test_expected_tokens_is_the_closed_form_and_alpha_comes_back(alpha, k):
    tokens = expected_tokens(alpha, k)
    assert tokens == pytest.approx((1 - alpha ** (k + 1)) / (1 - alpha))
    assert alpha_from_rate((tokens - 1) / k, k) == pytest.approx(alpha, abs=1e-6)


def test_alpha_at_the_ends():
    assert (alpha_from_rate(0.0, 5), alpha_from_rate(1.0, 5)) == (0.0, 1.0)


def test_step_cost_by_hand():
    assert step_cost(4, 0.1, CURVE) == pytest.approx(0.4 + 1.2)
    assert step_cost(2, 0.0, CURVE) == pytest.approx(1.1)  # t(3) lies halfway between t(1) and t(5)
    # half of the steps verify one row, half nine: mean 0.026
    assert step_cost(4, 0.1, CURVE, [[1, 3], [9, 3]]) == pytest.approx(0.4 + 1.3)


def test_a_free_draft_and_a_flat_curve_gain_all_tokens():
    flat = VerifyCurve({1: 0.02, 8: 0.02})
    assert predicted_speedup(3.0, step_cost(5, 0.0, flat)) == pytest.approx(3.0)
    assert break_even_acceptance(step_cost(5, 0.0, flat), 5) == 0.0


@given(st.integers(1, 12), st.floats(0.0, 1.0))
def test_at_the_break_even_acceptance_the_speedup_is_one(k, cost_ratio):
    cost = step_cost(k, cost_ratio, CURVE)
    assert predicted_speedup(1 + break_even_acceptance(cost, k) * k, cost) == pytest.approx(1.0)


def test_the_line_of_a_run_that_paid():
    line = worth_it(SUMMARY, CURVE)
    for text in (
        "worth it: measured 1.80x [1.60, 2.00]", "cost ratio 0.100", "acceptance 0.500", "t(5.0)/t(1) 1.20",
        "break-even mat 1.60, acceptance 0.150", "predicted 1.88x",
    ):  # fmt: skip
        assert text in line


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"ci_low": 0.5, "ci_high": 0.9, "walltime_speedup": 0.7}, "not worth it: measured 0.70x"),
        ({"ci_low": 0.9, "ci_high": 1.1}, "no clear difference"),
        ({"ci_low": None, "ci_high": None}, "too few samples"),
        ({"walltime_speedup": None}, "not measured"),
        ({"drafted_nothing": True}, "nothing was drafted"),
        ({"num_choices": 0}, "its search never ran"),
        ({"acceptance_rate": 0.019}, "acceptance is below 2%"),
        ({"noisy": True}, "noisy"),
        ({"mat": None}, "no steps recorded"),
        ({"cost_ratio": None}, "no prediction"),
        ({"draft_tokens_per_step": None, "acceptance_rate": None}, "break-even mat 1.60; predicted"),
    ],
)
def test_what_the_line_says(changes, text):
    line = worth_it(SUMMARY | changes, CURVE)
    assert text in line
    assert text not in worth_it(SUMMARY, CURVE)


def test_without_a_curve_nothing_is_predicted():
    assert "no prediction" in worth_it(SUMMARY, None)
