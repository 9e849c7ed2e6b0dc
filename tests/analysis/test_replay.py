"""Replayed steps against live ones: the same counts, for every policy, on a pair of toy models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from specbench.analysis.replay import (
    BlockOracle,
    BlockThreshold,
    Costs,
    Fixed,
    Outcome,
    Threshold,
    TokenOracle,
    Trace,
    replay,
    step_costs,
    steps_of,
    traces_of,
    tuned_length,
)
from specbench.controllers.block_oracle import BlockOracle as LiveBlockOracle
from specbench.controllers.block_rules import BlockRule
from specbench.controllers.confidence import ConfidenceStop
from specbench.controllers.fixed import FixedLength
from specbench.hardware.profile import VerifyCurve
from specbench.methods.sps import SpeculativeSampling
from specbench.recording import Answer, Turn, step_rows
from specbench.results.schema import to_frame, to_table
from specbench.types import DataError, Generation, Sample
from tests.decoding.tinies import ar_tokens, decode, tiny_draft, tiny_target
from tests.results.rows import step

COUNT, LONG = 32, 31
PROMPTS = ((256, 84, 104, 101, 32), (65,) * 12, (256, *range(60, 90)))
CURVE = VerifyCurve({1: 1.0, 8: 1.3, 32: 2.5})


def live(controller: Any, *, variant: str = "plain", stop_ids: Sequence[int] = ()) -> list[Generation]:
    """Every prompt decoded by the toy pair with a controller."""
    drafter = SpeculativeSampling(tiny_draft(variant), controller)
    generator = decode(drafter, decoder=tiny_target(variant))
    return [
        generator.generate(
            prompt, max_new_tokens=COUNT, seed=0, stop_ids=stop_ids, reference_ids=ar_tokens(COUNT, prompt, variant)
        )
        for prompt in PROMPTS
    ]


def frame(answers: Sequence[Generation]) -> pd.DataFrame:
    """Step rows as a finished run stores them."""
    rows = []
    for number, generation in enumerate(answers):
        turn = Turn(Sample(f"s{number}", ("",)), 0, 0, [1], "", truncated=False, seed=0)
        rows += step_rows(Answer(turn, "method", generation=generation))
    return to_frame(to_table("steps", rows))


def counts(answers: Sequence[Generation]) -> Outcome:
    steps = [step for answer in answers for step in answer.steps or ()]
    return Outcome(
        len(steps),
        sum(step.num_draft_tokens or 0 for step in steps),
        sum(step.num_accepted for step in steps),
        sum(step.num_emitted for step in steps),
    )


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    """From one run with long drafts, scored token by token."""
    return traces_of(frame(live(ConfidenceStop(LONG, threshold=0.0))))


def test_the_toy_run_shows_right_and_wrong_tokens(traces: list[Trace]) -> None:
    share = np.concatenate([trace.right for trace in traces]).mean()
    assert 0.2 < share < 0.95
    assert [len(trace.right) for trace in traces] == [COUNT] * len(PROMPTS)


def some(quick: Sequence[Any], slow: Sequence[Any]) -> list[Any]:
    """Decoding live takes time: a few policies in every test run, the others in the slow one."""
    return [*quick, *(pytest.param(*values, marks=pytest.mark.slow) for values in slow)]


@pytest.mark.parametrize("length", some([2, 5], [(1,), (3,), (8,), (13,)]))
def test_fixed_lengths_replay_to_the_live_counts(traces: list[Trace], length: int) -> None:
    assert replay(traces, Fixed(length)) == counts(live(FixedLength(length)))


@pytest.mark.parametrize(("block", "cap"), some([(2, 31), (4, 6)], [(1, 31), (3, 10)]))
def test_block_oracles_replay_to_the_live_counts(traces: list[Trace], block: int, cap: int) -> None:
    found = replay(traces, BlockOracle(cap, block_size=block))
    assert found == counts(live(LiveBlockOracle(cap, block_size=block)))
    assert found.steps <= replay(traces, Fixed(block)).steps


@pytest.mark.parametrize("threshold", some([0.3], [(0.1,), (0.6,), (0.95,)]))
def test_confidence_stops_replay_to_the_live_counts(traces: list[Trace], threshold: float) -> None:
    found = replay(traces, Threshold(12, threshold=threshold))
    assert found == counts(live(ConfidenceStop(12, threshold=threshold)))


def test_answers_that_stop_replay_too() -> None:
    answer = ar_tokens(COUNT, PROMPTS[1])
    stop_ids = [answer[17]]
    recorded = traces_of(frame(live(FixedLength(LONG), stop_ids=stop_ids)), max_new_tokens=COUNT)
    assert min(len(trace.right) for trace in recorded) < COUNT
    replayed, decoded = replay(recorded, Fixed(5)), counts(live(FixedLength(5), stop_ids=stop_ids))
    assert (replayed.accepted, replayed.steps) == (decoded.accepted, decoded.steps)


# ---- by hand


def trace(pattern: str, **fields: Any) -> Trace:
    return Trace(np.array([letter == "+" for letter in pattern]), **fields)


def test_steps_by_hand() -> None:
    example = trace("++-+++--+")
    found = [(s.start, s.drafted, s.accepted, s.emitted) for s in steps_of(example, Fixed(3))]
    assert found == [(0, 3, 2, 3), (3, 3, 3, 4), (7, 1, 0, 1), (8, 0, 0, 1)]
    assert [s.drafted for s in steps_of(example, TokenOracle())] == [2, 3, 0, 0]
    assert [s.drafted for s in steps_of(example, BlockOracle(9, block_size=2))] == [4, 4, 1, 0]
    assert [s.drafted for s in steps_of(example, BlockOracle(3, block_size=2))] == [3, 3, 1, 0]


def test_a_stop_id_that_was_drafted_ends_the_draft() -> None:
    assert [s.drafted for s in steps_of(trace("+++", budget=20), Fixed(8))] == [3]
    assert [s.drafted for s in steps_of(trace("++-", budget=20), Fixed(8))] == [8]


def test_what_a_run_does_not_tell_is_counted() -> None:
    rows = [
        step("a", 0, num_draft_tokens=2, num_tree_tokens=2, num_accepted=2, num_accepted_spine=2, num_emitted=3),
        step("a", 1, num_draft_tokens=2, num_tree_tokens=2, num_accepted=0, num_accepted_spine=0, num_emitted=1),
    ]
    (found,) = traces_of(to_frame(to_table("steps", rows)))
    assert found.right.tolist() == [True, True, True, False]
    assert found.unknown == 1


def test_trees_are_refused() -> None:
    rows = to_frame(to_table("steps", [step("a", num_tree_tokens=9)]))
    with pytest.raises(DataError, match="sample a: step 0 drafted no chain"):
        traces_of(rows)


def test_the_tuned_length_depends_on_the_costs() -> None:
    example = [trace("+++++++-" * 6)]
    cheap, outcomes = tuned_length(example, Costs(0.01, CURVE))
    assert cheap == 7  # beyond the run nothing is gained
    assert outcomes[7].mat == pytest.approx(8.0)
    dear, _ = tuned_length(example, Costs(2.0, CURVE))
    assert dear == 1
    assert set(outcomes) == {*range(1, 13), 16, 20}


def test_seconds_are_drafts_verification_and_checks() -> None:
    example = [trace("+++-" * 2)]
    costs = Costs(0.1, VerifyCurve({1: 1.0, 4: 1.6}), check=0.05)
    plain, checked = replay(example, Fixed(3), costs), replay(example, Fixed(3), costs, block_size=2)
    assert plain.drafted == 6
    assert plain.seconds == pytest.approx(2 * (3 * 0.1 + 1.6))
    assert checked.seconds == pytest.approx(plain.seconds + 2 * 2 * 0.05)
    assert plain.tokens_per_second == pytest.approx(8 / plain.seconds)
    assert replay(example, Fixed(3)).tokens_per_second is None


def test_costs_come_from_the_runs_own_steps() -> None:
    rows = [step("a", 0, draft_s=0.4, num_draft_tokens=4), step("a", 1, draft_s=9.0, num_draft_tokens=0)]
    steps = to_frame(to_table("steps", rows))
    assert step_costs(steps, CURVE).draft == pytest.approx(0.1)
    with pytest.raises(DataError, match="no step drafted"):
        step_costs(steps[steps["step"] == 1], CURVE)


def test_no_policy_beats_the_token_oracle(traces: list[Trace]) -> None:
    costs = Costs(0.1, CURVE)
    best = replay(traces, TokenOracle(), costs).tokens_per_second
    _, outcomes = tuned_length(traces, costs)
    assert best is not None
    assert all((outcome.tokens_per_second or 0) <= best for outcome in outcomes.values())


def test_a_block_rule_on_recorded_chances() -> None:
    """Blocks of two: the first passes, the second does not; what nobody was asked about goes on to the cap."""
    chances = {0: [0.9, 0.7, 0.9, 0.3, 0.9], 1: [0.9], 2: [0.1, 0.1, 0.1, 0.1]}
    trace = Trace(np.ones(20, dtype=bool), scores=chances)

    def length(start: int, **fields: Any) -> int:
        options = {"block_size": 2, "rule": BlockRule(0.7, 1.0, 0.95)}
        return BlockThreshold(12, **{**options, **fields}).length(trace, start)

    assert (length(0), length(1), length(2), length(5)) == (4, 12, 2, 12)
    assert length(2, min_draft_tokens=3) == 4
    assert length(0, rule=BlockRule(0.7, 1.2, 0.95)) == 4
    assert length(0, rule=BlockRule(0.5, 1.0, 0.95)) == 12
    assert length(0, rule=BlockRule(0.5, 1.0, 0.95, "cumprod")) == 4
    assert length(0, rule=BlockRule(0.72, 1.0, 0.95, "min")) == 2
    assert length(0, lag=1) == 6  # judged: token 1, then 2 and 3, then 4 and 5


def test_a_stop_id_that_the_draft_predicts_ends_its_chain() -> None:
    right = np.array([True, True, False, True, True, True])
    ends = np.array([False, False, True, False, False, False])  # the wrong token is a stop id
    known = [step.drafted for step in steps_of(Trace(right, budget=10, ends=ends), Fixed(5))]
    unknown = [step.drafted for step in steps_of(Trace(right, budget=10), Fixed(5))]
    assert known == [3, 3]  # and nothing behind the answer's end
    assert unknown == [5, 3]
