"""Prompt lookup drafts what followed before, cut before a stop id and at the budget."""

from __future__ import annotations

from typing import Any

import pytest

from specbench.decoding.protocol import Request
from specbench.decoding.sampling import GeneratorDraws
from specbench.decoding.target import Target
from specbench.hardware.profile import VerifyCurve
from specbench.hardware.timer import PhaseTimer
from specbench.methods.lengths import LengthPlanner
from specbench.methods.pld import PromptLookup
from specbench.types import Sampling, Verdict, VerifyResult
from tests.decoding.tinies import ar_tokens, check_every_step, decode, tiny_target


def begun(drafter: PromptLookup, committed: list[int], stop_ids: tuple[int, ...] = ()) -> PromptLookup:
    drafter.begin(
        Request(
            target=Target(tiny_target()),
            committed=committed,
            sampling=Sampling(),
            draws=GeneratorDraws(0),
            stop_ids=stop_ids,
            max_new_tokens=50,
            timer=PhaseTimer(),
        )
    )
    return drafter


def drafted(drafter: PromptLookup, budget: int = 50) -> tuple[list[int], Any]:
    draft = drafter.propose(budget)
    assert draft.spine == len(draft)
    assert draft.q is None
    return draft.tokens.tolist(), draft.info.get("stop_reason")


def test_continuation_of_the_first_occurrence() -> None:
    committed = [1, 2, 3, 4, 5, 9, 1, 2, 7, 8, 6, 1, 2]
    assert drafted(begun(PromptLookup(1, 2, 3), committed)) == ([3, 4, 5], None)
    assert drafted(begun(PromptLookup(1, 2, 3, match="last"), committed)) == ([7, 8, 6], None)


def test_what_was_committed_since_is_found() -> None:
    committed = [1, 2, 3]
    drafter = begun(PromptLookup(1, 2, 4), committed)
    assert drafted(drafter) == ([], "no_match")
    committed += [9, 4, 1]
    assert drafted(drafter) == ([2, 3, 9, 4], None)
    committed += [2]
    assert drafted(drafter) == ([3, 9, 4, 1], None)


def test_whole_continuation_passes_over_a_short_one() -> None:
    committed = [5, 6, 1, 2, 3, 4, 5, 6]
    assert drafted(begun(PromptLookup(1, 2, 6, whole_continuation=True), committed))[0] == [1, 2, 3, 4, 5, 6]
    assert drafted(begun(PromptLookup(1, 2, 7, whole_continuation=True), committed)) == ([], "no_match")
    assert drafted(begun(PromptLookup(1, 2, 7), committed))[0] == [1, 2, 3, 4, 5, 6]


def test_draft_ends_before_a_stop_id_and_at_the_budget() -> None:
    committed = [1, 2, 3, 4, 0, 5, 1, 2]
    assert drafted(begun(PromptLookup(1, 2, 6), committed, (0,)))[0] == [3, 4]
    assert drafted(begun(PromptLookup(1, 2, 6), committed, (3,))) == ([], "stop_id")
    assert drafted(begun(PromptLookup(1, 2, 6), committed), budget=1)[0] == [3]
    assert drafted(begun(PromptLookup(1, 2, 6), committed), budget=0) == ([], "budget")


def test_planner_says_how_much_and_hears_what_came_of_it() -> None:
    committed = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    drafter = PromptLookup(1, 2, 6, planner=LengthPlanner(VerifyCurve({1: 1.0, 16: 1.8}), 6, 0.6))
    begun(drafter, committed)
    first = len(drafted(drafter)[0])
    assert 0 < first <= 6
    for _ in range(40):
        drafter.propose(50)
        drafter.observe(Verdict((), (9,), 0, 0, 9), VerifyResult())
    assert drafted(drafter) == ([], "planned")
    drafter.reset()
    assert len(drafted(drafter)[0]) == first


def test_a_step_without_a_draft_teaches_nothing() -> None:
    drafter = PromptLookup(1, 2, 6, planner=LengthPlanner(VerifyCurve({1: 1.0, 16: 1.8}), 6, 0.6))
    begun(drafter, [1, 2, 3])
    assert drafted(drafter) == ([], "no_match")
    drafter.observe(Verdict((), (9,), 0, 0, 9), VerifyResult())
    fresh = LengthPlanner(VerifyCurve({1: 1.0, 16: 1.8}), 6, 0.6)
    assert drafter.planner is not None
    assert [drafter.planner.length(size) for size in (1, 2, 3)] == [fresh.length(size) for size in (1, 2, 3)]


@pytest.mark.parametrize("drafter", [PromptLookup(1, 3, 10, whole_continuation=True), PromptLookup(1, 2, 10)])
def test_repetitive_text_is_accepted(drafter: PromptLookup) -> None:
    prompt = [65] * 20
    found = check_every_step(decode(drafter)).generate(prompt, max_new_tokens=40, seed=0)
    assert found.tokens == ar_tokens(40, prompt)
    assert sum(step.num_accepted for step in found.steps) > 0
