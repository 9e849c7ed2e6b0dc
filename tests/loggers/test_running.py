from __future__ import annotations

from specbench.loggers.running import Running
from tests.results.rows import failed, sample


def test_nothing_is_claimed_before_there_is_something():
    assert Running().metrics() == {}


def test_rates_are_pooled_over_used_rows_of_each_arm():
    running = Running()
    running.add(
        [
            sample("a", num_tokens=10, decode_s=1.0, num_draft_tokens=8, num_accepted_spine=6, num_steps=4),
            sample("a", arm="baseline", num_tokens=10, decode_s=2.0),
            sample("a", num_tokens=999, decode_s=1.0, used=False),
            sample("b", num_tokens=30, decode_s=1.0, num_draft_tokens=2, num_accepted_spine=1, num_steps=16),
            sample("b", arm="baseline", num_tokens=30, decode_s=6.0),
            failed("c"),
            failed("d", "skipped"),
        ]
    )
    assert running.metrics() == {
        "tokens_per_second": 20.0,
        "acceptance_rate": 0.7,
        "mat": 2.0,
        "walltime_speedup": 4.0,
    }
    assert running.num_errors == 1


def test_a_method_without_steps_has_no_acceptance_and_no_mat():
    running = Running()
    running.add([sample(num_draft_tokens=None, num_accepted_spine=None)])
    assert running.metrics() == {"tokens_per_second": 10.0}
