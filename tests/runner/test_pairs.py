"""What is decoded beside what: pairs, their order, repeats, and where the baseline comes from."""

from __future__ import annotations

import itertools
import logging

import pytest

from specbench.results.files import read_json, write_json
from specbench.runner.session import Session
from specbench.types import ConfigError
from tests.runner.runs import local_questions, measured, tiny_config, with_method

SPEEDS = ("walltime_speedup", "end_to_end_speedup", "median_speedup", "ci_low", "tokens_per_second", "cost_ratio")


def test_every_turn_is_a_pair_on_the_same_prompt_with_the_same_seed(measure):
    done = measure("method=sps", "task=mt_bench")
    own, baseline = done.rows("method"), done.rows("baseline")
    assert len(own) == len(baseline) == 4
    for column in ("sample_id", "turn", "prompt_sha256", "prompt_tokens", "seed", "num_tokens"):
        assert list(own[column]) == list(baseline[column])
    assert own["timed"].all()
    assert baseline["timed"].all()
    assert list(own["ran_first"]) != list(baseline["ran_first"])


def test_the_order_within_a_pair_alternates_between_samples(measure, tmp_path):
    done = measure(*local_questions(tmp_path))
    assert list(done.rows("method")["ran_first"]) == [False, True, False, True]
    assert list(done.rows("baseline")["ran_first"]) == [True, False, True, False]
    own, baseline = done.rows("method"), done.rows("baseline")
    assert list(own["started_at"].to_numpy() < baseline["started_at"].to_numpy()) == list(own["ran_first"])


def test_a_part_that_reads_the_baselines_answer_always_runs_second(measure, tmp_path):
    done = measure(*local_questions(tmp_path), change=with_method("NeedsReference"))
    assert done.error is None
    assert not done.rows("method")["ran_first"].any()


def test_ar_is_paired_with_itself_in_the_same_loop(measure):
    done = measure("method=ar")
    assert done.rows("method")["num_steps"].equals(done.rows("method")["num_tokens"])
    assert (done.summary["mat"], done.summary["exact_match_rate"]) == (1.0, 1.0)
    assert done.summary["walltime_speedup"] > 0
    assert done.objective == done.summary["walltime_speedup"]


def test_repeats_are_whole_passes_that_all_count(measure):
    done = measure("method=sps", "measure.repeats=3", "num_samples=1")
    assert list(done.rows()["repeat"]) == [0, 1, 2]
    assert done.rows()["tokens"].map(tuple).nunique() == 1
    assert done.rows()["seed"].nunique() == 3  # sampling must not repeat itself
    assert done.summary["num_samples"] == 1
    total = done.rows()["decode_s"].sum()
    assert done.summary["decode_s"] == pytest.approx(total)


def test_a_pair_whose_machine_drifted_is_repeated_at_most_twice_and_the_calmest_counts(measure, monkeypatch):
    speeds = iter([1.0, 1.5, 1.0, 1.2, 1.0, 1.3])  # before and after each attempt
    monkeypatch.setattr(Session, "probe", lambda self: next(speeds))
    done = measure("num_samples=1", "measure.drift_share=2")
    own = done.samples[done.samples["arm"] == "method"]
    assert list(own["attempt"]) == [0, 1, 2]
    assert list(own["used"]) == [False, True, False]
    assert list(own["ran_first"]) == [False, True, False]
    assert done.summary["decode_s"] == own["decode_s"].iloc[1]


def test_drift_repeats_says_how_often_a_drifting_pair_is_measured_again(measure, monkeypatch):
    speeds = iter([1.0, 1.5])
    monkeypatch.setattr(Session, "probe", lambda self: next(speeds))
    done = measure("num_samples=1", "measure.drift_repeats=0")
    assert list(done.samples["attempt"]) == [0, 0]
    assert done.summary["walltime_speedup"] > 0


def test_repetitions_are_a_share_of_the_pairs_and_the_first_is_always_made(measure, monkeypatch):
    speeds = itertools.cycle([1.0, 1.5])
    monkeypatch.setattr(Session, "probe", lambda self: next(speeds))
    done = measure("num_samples=8", "measure.drift_share=0.25")
    own = done.samples[done.samples["arm"] == "method"]
    assert list(own[own["attempt"] > 0]["sample_id"]) == list(dict.fromkeys(own["sample_id"]))[0:5:4]
    assert len(own) == 10


def test_a_calm_attempt_ends_the_repeating(measure, monkeypatch):
    speeds = iter([1.0, 1.5, 1.0, 1.05])
    monkeypatch.setattr(Session, "probe", lambda self: next(speeds))
    assert list(measure("num_samples=1").rows()["attempt"]) == [1]


def test_without_a_baseline_there_is_one_arm_and_no_comparison(measure):
    done = measure("method=sps", "measure.baseline=none", "objective=tokens_per_second")
    assert set(done.samples["arm"]) == {"method"}
    assert done.rows()["exact_match"].isna().all()
    assert done.summary["walltime_speedup"] is None
    assert done.summary["exact_match_rate"] is None
    assert done.objective == done.summary["tokens_per_second"] > 0


def test_a_run_that_shares_its_device_gives_no_speed(measure):
    done = measure("method=sps", "measure.exclusive=false")
    assert not done.samples["timed"].any()
    assert {name: done.summary[name] for name in SPEEDS} == dict.fromkeys(SPEEDS)
    assert done.objective is None
    assert done.summary["acceptance_rate"] > 0
    assert done.summary["exact_match_rate"] == 1.0


# ---- measure.baseline=stored


@pytest.fixture
def stored(measure):
    """A stored AR run on two conversations of two turns, and a way to measure against it."""
    ar = measure("task=mt_bench", "measure.baseline=none")
    return ar, lambda *words: measure("task=mt_bench", "method=sps", "measure.baseline=stored", *words)


def test_stored_answers_take_the_baselines_place(stored):
    ar, against = stored
    done = against()
    assert done.error is None
    assert list(done.rows("baseline")["started_at"]) == list(ar.rows()["started_at"])
    assert list(done.rows("baseline")["decode_s"]) == list(ar.rows()["decode_s"])
    assert done.summary["exact_match_rate"] == 1.0
    assert done.summary["walltime_speedup"] == pytest.approx(
        (ar.rows()["decode_s"].sum() / ar.rows()["num_tokens"].sum())
        / (done.rows()["decode_s"].sum() / done.rows()["num_tokens"].sum())
    )


def test_a_missing_stored_run_is_an_error_that_says_how_to_make_it_and_leaves_no_folder(measure, tmp_path):
    with pytest.raises(ConfigError, match=r"measure\.baseline=stored: no finished AR run.*method=ar") as caught:
        measure("method=sps", "measure.baseline=stored")
    assert len(str(caught.value).splitlines()) == 1
    assert not list((tmp_path / "results").glob("runs/*sps*"))


def test_a_stored_run_of_another_machine_gives_tokens_and_no_speed(stored, caplog):
    ar, against = stored
    file = ar.run_dir / "environment.json"
    write_json(file, {**read_json(file), "cpu": {"model": "another"}})
    with caplog.at_level(logging.WARNING):
        done = against()
    assert any("another cpu" in record.message for record in caplog.records)
    assert done.summary["exact_match_rate"] == 1.0
    assert done.summary["walltime_speedup"] is None
    assert done.summary["tokens_per_second"] > 0


def test_a_stored_answer_to_another_prompt_is_a_failed_row(tmp_path, cache, calm):
    words = local_questions(tmp_path / "data")
    config = tiny_config([*words, "measure.baseline=none"], tmp_path / "results", cache)
    measured(config)
    local_questions(tmp_path / "data", ["Ann has 4 pears.", "Bob reads 12 pages a day.", "Cid walks 5 miles.", "?"])
    done = measured(tiny_config([*words, "measure.baseline=stored", "method=sps"], tmp_path / "results", cache))
    assert done.error.startswith("2 of 4 samples failed")
    failed = done.samples[done.samples["finish_reason"] == "error"]
    assert set(failed["sample_id"]) == {"gsm8k/0", "gsm8k/3"}
    assert failed["error"].str.contains("another prompt").all()
    assert done.summary["num_measured"] == 2


def test_a_repetition_knows_what_the_earlier_turns_taught(measure, monkeypatch):
    speeds = iter([1.0, 1.0, 1.0, 1.5, 1.0, 1.0])  # the first turn is calm, the second is measured twice
    monkeypatch.setattr(Session, "probe", lambda self: next(speeds))
    done = measure("method=ouroboros", "task=mt_bench", "num_samples=1", "sampling.max_new_tokens=32")
    steps = done.steps[(done.steps["arm"] == "method") & (done.steps["turn"] == 1)]
    first, again = (steps[steps["attempt"] == attempt].reset_index(drop=True) for attempt in (0, 1))
    assert len(again) > 0
    for column in ("draft_tokens", "num_draft_tokens", "num_tree_tokens", "num_accepted"):
        assert first[column].astype(str).equals(again[column].astype(str))
