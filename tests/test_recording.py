"""From an answer to stored rows: what is summed, what is null, and what a failed answer does not carry."""

from __future__ import annotations

import pytest

from specbench.recording import Answer, Turn, choice_rows, sample_row, sample_seed, step_rows
from specbench.results.schema import to_table
from specbench.types import ChoiceRecord, Generation, Sample, StepRecord

TURN = Turn(Sample("s/1", ("hi",), "maths"), 1, 0, [1, 2, 3], "abc", truncated=False, seed=7)


def step(number: int, spine: int | None = 4, **changes) -> StepRecord:
    values = {
        "step": number,
        "context_length": 3 + number,
        "num_draft_tokens": spine,
        "num_tree_tokens": 6,
        "num_passengers": 1,
        "num_accepted": 2,
        "num_accepted_spine": 1,
        "num_emitted": 3,
        "draft_s": 0.1,
        "verify_s": 0.2,
        "adapt_s": 0.3,
        "host_s": 0.4,
    }
    return StepRecord(**{**values, **changes})


def answer(steps, **changes) -> Answer:
    generation = Generation((5, 6, 7), "stop", prefill_s=1.0, decode_s=2.0, ttft_s=1.5, steps=steps)
    return Answer(TURN, "method", generation=generation, finish_reason="stop", text="yes", **changes)


def test_counts_and_phases_are_sums_over_the_steps():
    row = sample_row(answer((step(0), step(1))))
    assert (row["num_steps"], row["num_draft_tokens"], row["num_tree_tokens"]) == (2, 8, 12)
    assert (row["num_accepted"], row["num_accepted_spine"], row["num_tokens"]) == (4, 2, 3)
    assert row["host_s"] == pytest.approx(0.8)
    assert (row["prompt_tokens"], row["seed"], row["category"], row["turn"]) == (3, 7, "maths", 1)


def test_without_a_spine_in_every_step_its_counts_are_null_and_the_trees_are_not():
    row = sample_row(answer((step(0), step(1, spine=None))))
    assert row["num_draft_tokens"] is None
    assert row["num_accepted_spine"] is None
    assert row["num_tree_tokens"] == 12


def test_without_steps_nothing_is_made_up():
    given = answer(None)
    row = sample_row(given)
    assert row["decode_s"] == 2.0
    assert not {"num_steps", "draft_s", "num_accepted"} & set(row)
    assert step_rows(given) == choice_rows(given) == []


def test_a_failed_answer_carries_its_reason_and_no_number():
    given = Answer(TURN, "method", error="out of memory", peak_memory_bytes=5, comparison={"exact_match": True})
    row = sample_row(given)
    assert (row["finish_reason"], row["error"]) == ("error", "out of memory")
    assert to_table("samples", [row]).num_rows == 1  # the schema refuses stale numbers
    assert row.get("peak_memory_bytes") is None


def test_every_row_of_an_answer_shares_its_key():
    given = answer((step(0, info={"why": "cap"}),), attempt=2)
    given.scores = {"accuracy": 1.0}
    rows = [sample_row(given), *step_rows(given)]
    assert [tuple(row[name] for name in given.key) for row in rows] == [("s/1", 1, "method", 2, 0)] * 2
    assert rows[0]["scores"] == '{"accuracy": 1.0}'
    assert rows[1]["info"] == '{"why": "cap"}'


def test_choices_become_rows():
    generation = Generation((5,), "stop", 1.0, 1.0, 1.0, (), (ChoiceRecord(3, 9, "skip_set", {"layers": [1]}),))
    (row,) = choice_rows(Answer(TURN, "method", generation=generation))
    assert (row["kind"], row["step"], row["values"]) == ("skip_set", 3, '{"layers": [1]}')


def test_a_seed_depends_on_everything_that_names_a_turn_and_fits_the_column():
    seeds = {
        sample_seed(*key) for key in [(0, "a", 0, 0), (1, "a", 0, 0), (0, "b", 0, 0), (0, "a", 1, 0), (0, "a", 0, 1)]
    }
    assert len(seeds) == 5
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert sample_seed(0, "a", 0, 0) == sample_seed(0, "a", 0, 0)
