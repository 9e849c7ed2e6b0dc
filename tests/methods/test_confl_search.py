"""ConfLayers' search: when a set is judged, kept, given up, and what is installed in the end."""

from __future__ import annotations

from typing import Any

import pytest

from specbench.methods.confl_search import LayerSearch, SearchRules

N = 10
GOOD, SMALL = (1, 3, 5, 7), (1, 3)
OURS: dict[str, Any] = {
    "skip_ratio": 0.4,
    "search_interval": 4,
    "max_opt_iter": 100,
    "max_score": 0.8,
    "min_acc_for_stop": 4.0,
    "lambda_mode": "adaptive",
    "lambda_init": 0.0,
    "lambda_step": 0.05,
    "ratio_band": 0.25,
    "early_abort": "half",
    "min_set": "at_least",
    "fallback_set": "uniform",
    "keep_history": False,
}


def search(**changes: Any) -> LayerSearch:
    return LayerSearch(SearchRules(**{**OURS, **changes}), N)


def started(layers: tuple[int, ...] = GOOD, **changes: Any) -> LayerSearch:
    """A search whose first choice is made."""
    made = search(**changes)
    made.begin()
    assert made.is_due(layers, drafted=5, accepted=5)
    assert made.adopt(layers) == layers
    return made


def steps(made: LayerSearch, layers: tuple[int, ...], accepted: int, count: int, drafted: int = 6) -> list[bool]:
    return [made.is_due(layers, drafted=drafted, accepted=accepted) for _ in range(count)]


def test_a_set_is_judged_after_one_step_more_than_the_interval():
    made = started()
    assert steps(made, GOOD, 2, 5) == [False] * 4 + [True]
    assert (made.best_accepted, made.best_layers) == (2.0, GOOD)
    assert made.measured == (2.0, pytest.approx(2 / 6))


def test_a_better_set_replaces_the_best_and_a_worse_one_does_not():
    made = started()
    for layers, accepted in ((GOOD, 2), ((2, 4, 6, 8), 3), (GOOD, 2)):
        steps(made, layers, accepted, 5)
        made.adopt(layers)
    assert (made.best_accepted, made.best_layers) == (3.0, (2, 4, 6, 8))


def test_a_good_enough_set_is_kept_for_ever():
    made = started()
    made.best_accepted, made.best_layers = 9.0, (2, 4, 6, 8)
    assert steps(made, GOOD, 5, 5) == [False] * 5
    assert not made.active
    assert not any(steps(made, GOOD, 0, 20))
    assert made.opt_iter == 1


@pytest.mark.parametrize(("accepted", "drafted"), [(5, 7), (4, 4)])  # rate too low; not above four tokens
def test_both_limits_must_be_passed_to_stop(accepted, drafted):
    made = started()
    assert steps(made, GOOD, accepted, 5, drafted)[-1]
    assert made.active


@pytest.mark.parametrize(("interval", "early_abort", "expected"), [
    (4, "half", 2), (5, "half", 2), (4, "exact_half", 2), (5, "exact_half", 6), (5, "never", 6), (1, "half", 1),
])  # fmt: skip
def test_a_bad_set_is_given_up_early(interval, early_abort, expected):
    made = started(search_interval=interval, early_abort=early_abort)
    assert steps(made, GOOD, 0, expected) == [False] * (expected - 1) + [True]
    assert made.best_layers == ()


def test_one_accepted_token_a_step_is_not_bad():
    made = started()
    assert steps(made, GOOD, 1, 5) == [False] * 4 + [True]


def test_the_cap_restores_the_best_set():
    made = started(max_opt_iter=2)
    steps(made, GOOD, 2, 5)
    assert made.adopt((2, 4, 6, 8)) == GOOD
    assert not made.active


@pytest.mark.parametrize(("fallback", "expected"), [("uniform", (1, 3, 5, 7, 9)), ("last", GOOD), ("empty", ())])
def test_the_cap_without_any_judged_set_installs_the_fallback(fallback, expected):
    made = search(max_opt_iter=1, fallback_set=fallback)
    made.begin()
    assert made.adopt(GOOD) == expected
    assert not made.active


@pytest.mark.parametrize(("min_set", "again"), [("at_least", False), ("above", True)])
def test_a_set_of_exactly_the_ratio(min_set, again):
    """As published lambda stays, since the ratio is met, while the set counts as too small: chosen at every step."""
    made = started(min_set=min_set)
    assert steps(made, GOOD, 3, 3) == [again] * 3
    assert made.lam == 0.0


def test_a_set_that_is_too_small_is_chosen_anew_at_every_step_and_moves_lambda():
    made = started(SMALL)
    for number in range(2, 5):
        assert made.is_due(SMALL, drafted=3, accepted=3)
        made.adopt(SMALL)
        assert made.lam == pytest.approx(-0.05 * number)
    assert made.best_layers == ()


@pytest.mark.parametrize(("size", "moved"), [(3, -0.05), (4, 0.0), (6, 0.0), (7, 0.05)])
def test_lambda_holds_the_share_in_a_band(size, moved):
    made = search()
    made.adopt(tuple(range(1, size + 1)))
    assert made.lam == pytest.approx(moved)


def test_a_fixed_lambda_stays():
    made = search(lambda_mode="fixed", lambda_init=0.4)
    made.adopt(SMALL)
    assert made.lam == 0.4


@pytest.mark.parametrize("keep_history", [False, True])
def test_steps_of_two_prompts_are_judged_together_only_when_asked_for(keep_history):
    made = started(keep_history=keep_history)
    steps(made, GOOD, 3, 4)
    made.begin()
    assert made.is_due(GOOD, drafted=6, accepted=3)  # a new prompt chooses anew
    assert (made.best_layers == GOOD) == keep_history


def test_plain_steps_do_not_count():
    made = started()
    assert steps(made, GOOD, 0, 20, drafted=0) == [False] * 20
