from __future__ import annotations

import pytest

from specbench.analysis.metrics import summarise
from specbench.loggers.running import Running
from specbench.results.schema import empty_frame
from tests.analysis.frames import frame
from tests.results.rows import failed, sample, step

COUNTS = {"num_draft_tokens": 8, "num_tree_tokens": 8, "num_accepted": 6, "num_accepted_spine": 6}
SKIPPED = {"num_draft_tokens": 0, "num_tree_tokens": 0, "num_accepted": 0, "num_accepted_spine": 0}


def turn(sample_id, seconds, seconds_ar, **values):
    """Both arms of a turn of 10 tokens in 4 steps; `seconds` None = the method failed."""
    shared = {"turn": values.get("turn", 0), "attempt": values.get("attempt", 0)}
    own = failed(sample_id, **shared) if seconds is None else sample(sample_id, **COUNTS, num_steps=4, **values)
    return [own | ({"decode_s": seconds}), sample(sample_id, arm="baseline", decode_s=seconds_ar, **values)]


CONVERSATIONS = {
    "plain": turn("plain", 1.0, 2.0),
    "faster": turn("faster", 0.25, 3.0) + turn("faster", 0.5, 3.0, turn=1),
    "untimed": turn("untimed", 9.0, 1.0, timed=False),
    "half timed": turn("half timed", 1.0, 7.0) + turn("half timed", 1.0, 7.0, turn=1, timed=False),
    "failed": turn("failed", None, 50.0),
    "later turn failed": turn("later turn failed", 1.0, 90.0) + turn("later turn failed", None, 90.0, turn=1),
    "skipped": [failed("skipped", "skipped"), failed("skipped", "skipped", arm="baseline")],
    "repeated": turn("repeated", 80.0, 1.0, used=False) + turn("repeated", 1.0, 4.0, attempt=1),
    "without AR": [sample("without AR", num_tokens=10, decode_s=0.5)],
}


def steps_of(rows):
    """Steps that add up to what the method's rows say."""
    found = []
    for row in rows:
        if row["arm"] == "method" and row.get("num_steps"):
            key = {name: row[name] for name in ("turn", "arm", "attempt", "repeat")}
            drafting = [step(row["sample_id"], 0, key=key, **COUNTS, num_emitted=7)]
            found += drafting + [step(row["sample_id"], n, key=key, **SKIPPED, num_emitted=1) for n in (1, 2, 3)]
    return found


def table_of(rows):
    """What the closing table would have."""
    steps = steps_of(rows)
    summary = summarise(frame(rows), frame(steps, "steps") if steps else empty_frame("steps"))
    names = ("tokens_per_second", "acceptance_rate", "mat", "walltime_speedup")
    return {name: summary[name] for name in names if summary[name] is not None}, summary


def test_nothing_is_claimed_before_there_is_something():
    assert Running().metrics() == {}
    nothing = Running()
    nothing.add_frame(empty_frame("samples"))
    assert (nothing.metrics(), nothing.num_samples) == ({}, 0)


def test_rates_are_pooled_over_conversations():
    running = Running()
    running.add(CONVERSATIONS["plain"])
    running.add(CONVERSATIONS["repeated"])
    expected = {"tokens_per_second": 10.0, "acceptance_rate": 0.75, "mat": 2.5, "walltime_speedup": 3.0}
    assert running.metrics() == pytest.approx(expected)


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_each_conversation_counts_as_in_the_closing_table(name):
    running = Running()
    running.add(CONVERSATIONS[name])
    rates, summary = table_of(CONVERSATIONS[name])
    assert running.metrics() == pytest.approx(rates)
    assert (running.num_samples, running.num_failed) == (summary["num_samples"], summary["num_failed"])


def test_after_every_conversation_the_rates_are_those_of_the_closing_table():
    running, rows = Running(), []
    for conversation in CONVERSATIONS.values():
        rows += conversation
        running.add(conversation)
        rates, summary = table_of(rows)
        assert running.metrics() == pytest.approx(rates)
        assert (running.num_samples, running.num_failed) == (summary["num_samples"], summary["num_failed"])
    assert set(rates) == {"tokens_per_second", "acceptance_rate", "mat", "walltime_speedup"}
    assert running.num_failed == 2


def test_a_frame_of_conversations_counts_like_one_after_the_other():
    running, whole = Running(), Running()
    for conversation in CONVERSATIONS.values():
        running.add(conversation)
    whole.add_frame(frame([row for rows in CONVERSATIONS.values() for row in rows]))
    assert whole.metrics() == pytest.approx(running.metrics())
    assert whole.num_samples == running.num_samples == len(CONVERSATIONS)


def test_a_method_without_steps_has_no_acceptance_and_no_mat():
    running = Running()
    running.add([sample(num_draft_tokens=None, num_accepted_spine=None)])
    assert running.metrics() == {"tokens_per_second": 10.0}
