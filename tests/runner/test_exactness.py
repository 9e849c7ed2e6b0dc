"""The method's answer against AR's: equal, a tie, or a bug that fails the run."""

from __future__ import annotations

import pytest

from tests.runner.runs import with_method


@pytest.mark.parametrize("method", ["ar", "pld", "sps"])
def test_float32_gives_ars_tokens(measure, method):
    done = measure(f"method={method}", "sampling.max_new_tokens=32")
    assert done.error is None
    assert done.summary["exact_match_rate"] == 1.0
    assert done.summary["num_compared"] == 2
    assert done.rows("method")["tokens"].map(tuple).to_list() == done.rows("baseline")["tokens"].map(tuple).to_list()
    assert done.summary["teacher_agreement"] == 1.0


def test_a_divergence_beyond_rounding_is_a_bug_and_fails_the_run(measure):
    done = measure(change=with_method("WrongToken"))
    assert done.error.startswith("2 answers differ from AR by more than rounding explains (measure.tie_gap)")
    assert set(done.rows()["divergence_class"]) == {"bug"}
    assert set(done.rows()["divergence_index"]) == {3}
    assert (done.rows()["divergence_gap"] > 1e-3).all()
    assert (done.summary["num_bugs"], done.summary["exact_match_rate"]) == (2, 0.0)
    assert done.status["status"] == "failed"
    assert done.summary["walltime_speedup"] > 0  # kept, for whoever looks for the bug


def test_below_the_tie_gap_it_is_a_tie_and_no_failure(measure):
    done = measure("measure.tie_gap=1000000.0", change=with_method("WrongToken"))
    assert done.error is None
    assert set(done.rows()["divergence_class"]) == {"tie"}
    assert (done.summary["num_ties"], done.summary["num_bugs"], done.summary["exact_match_rate"]) == (2, 0, 0.0)


def test_a_missing_token_is_never_a_tie(measure):
    done = measure("measure.tie_gap=1000000.0", change=with_method("TooShort"))
    assert set(done.rows()["divergence_class"]) == {"bug"}
    assert done.rows()["divergence_gap"].isna().all()
    assert done.error is not None


def test_sampled_answers_are_not_compared(measure):
    done = measure("method=sps", "sampling.temperature=1")
    assert done.error is None
    assert done.rows()["exact_match"].isna().all()
    assert done.summary["exact_match_rate"] is None


def test_a_sampled_sample_can_be_replayed_alone(measure):
    whole = measure("sampling.temperature=1", "num_samples=4")
    part = measure("sampling.temperature=1", "num_samples=2")
    tokens = whole.rows().set_index("sample_id")["tokens"].map(tuple)
    for sample_id, answer in part.rows().set_index("sample_id")["tokens"].map(tuple).items():
        assert tokens[sample_id] == answer
    other = measure("sampling.temperature=1", "num_samples=2", "seed=1")
    assert other.rows()["tokens"].map(tuple).to_list() != part.rows()["tokens"].map(tuple).to_list()
