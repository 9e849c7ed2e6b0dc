"""The planner picks the length with the most expected tokens a second, from costs and counts alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.hardware.profile import VerifyCurve, seconds
from specbench.methods.lengths import LengthPlanner

FREE = VerifyCurve({1: 1.0, 32: 1.0})
PROPORTIONAL = VerifyCurve({1: 1.0, 32: 32.0})
verdicts = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 8), st.integers(0, 8)), max_size=30)


def best_length(curve: VerifyCurve, cap: int, chances: list[float]) -> tuple[float, list[int]]:
    """The best rate by trying every length, and the lengths that reach it."""
    rates = []
    for k in range(cap + 1):
        together, expected = 1.0, 1.0
        for chance in chances[:k]:
            together *= chance
            expected += together
        rates.append(expected / seconds(curve, k + 1))
    return max(rates), [k for k, rate in enumerate(rates) if rate >= max(rates) * (1 - 1e-12)]


@settings(deadline=None, derandomize=True)
@given(st.floats(0.05, 0.99), st.lists(st.floats(0.01, 3.0), min_size=3, max_size=3), st.integers(1, 12))
def test_before_any_verdict_the_prior_decides(prior: float, rises: list[float], cap: int) -> None:
    costs = [1.0]
    for rise in rises:
        costs.append(costs[-1] + rise)
    curve = VerifyCurve(dict(zip((1, 2, 5, 16), costs, strict=True)))
    _, best = best_length(curve, cap, [prior] * cap)
    assert LengthPlanner(curve, cap, prior).length(2) in best


@settings(deadline=None, derandomize=True)
@given(verdicts, st.floats(0.2, 0.9))
def test_length_maximises_tokens_a_second_under_what_was_counted(
    seen: list[tuple[int, int, int]], prior: float
) -> None:
    """The chances written out: a position's own rate, pulled towards its class's, which is pulled to the prior."""
    curve, cap = VerifyCurve({1: 1.0, 2: 1.02, 4: 1.3, 8: 2.0, 16: 3.5}), 8
    planner = LengthPlanner(curve, cap, prior)
    tried, accepted = [0] * cap, [0] * cap
    for size, drafted, right in seen:
        right = min(right, drafted)
        planner.learn(size, drafted=drafted, accepted=right)
        if size in (4, 5):  # one class
            for position in range(min(drafted, right + 1)):
                tried[position] += 1
                accepted[position] += position < right
    pooled = (sum(accepted) + 4 * prior) / (sum(tried) + 4)
    chances = [(a + 4 * pooled) / (t + 4) for a, t in zip(accepted, tried, strict=True)]
    assert planner.length(4) == planner.length(5)
    assert planner.length(5) in best_length(curve, cap, chances)[1]


def test_free_verification_drafts_all_and_dear_verification_nothing() -> None:
    assert LengthPlanner(FREE, 10, 0.5).length(2) == 10
    assert LengthPlanner(PROPORTIONAL, 10, 0.9).length(2) == 0


def test_rejections_shorten_and_acceptances_lengthen() -> None:
    curve = VerifyCurve({1: 1.0, 16: 1.6})
    planner = LengthPlanner(curve, 10, 0.6)
    start = planner.length(3)
    for _ in range(20):
        planner.learn(3, drafted=10, accepted=10)
    assert planner.length(3) == 10 > start
    planner.reset()
    for _ in range(200):
        planner.learn(3, drafted=4, accepted=0)
    assert planner.length(3) < start
    planner.reset()
    assert planner.length(3) == start


@pytest.mark.parametrize("size", [1, 2])
def test_match_sizes_learn_apart(size: int) -> None:
    planner = LengthPlanner(VerifyCurve({1: 1.0, 16: 2.0}), 8, 0.5)
    before = planner.length(3 - size)
    for _ in range(50):
        planner.learn(size, drafted=8, accepted=8)
    assert planner.length(3 - size) == before
    assert planner.length(size) == 8
