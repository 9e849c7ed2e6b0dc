"""What goes wrong in one sample costs that sample, is written down, and ends the run with a failure."""

from __future__ import annotations

import logging

import pytest

from specbench.analysis.report import closing_table
from specbench.results.summary import load_runs
from tests.runner.runs import QUESTIONS, broken_model, local_questions, with_method

NUMBERS = ("num_tokens", "decode_s", "prefill_s", "num_steps", "exact_match", "peak_memory_bytes")


def failed_rows(done):
    return done.samples[done.samples["finish_reason"] == "error"]


@pytest.mark.parametrize("temperature", [0, 1])
def test_nan_logits_fail_the_samples_that_meet_them(measure, tmp_path, cache, temperature):
    letter = "@"  # not in what the model answers to the others
    words = local_questions(tmp_path, [QUESTIONS[0], "At @ home.", QUESTIONS[2]])
    words += broken_model(tmp_path / "broken", cache, letter)
    done = measure(*words, f"sampling.temperature={temperature}", "measure.warmup=1", "sampling.max_new_tokens=6")
    told = "1 of 3 samples failed; their rows say why: the target's logits are NaN or infinite. The same command"
    assert done.error.startswith(told)
    assert set(failed_rows(done)["sample_id"]) == {"gsm8k/1"}
    assert set(failed_rows(done)["error"]) == {"the target's logits are NaN or infinite"}
    assert failed_rows(done)[list(NUMBERS)].isna().all(axis=None)
    assert done.status["status"] == "failed"
    assert (done.status["num_failed"], done.summary["num_measured"]) == (1, 2)
    assert done.summary["walltime_speedup"] > 0


def test_a_model_that_gives_nothing_but_nan_fails_every_sample_and_still_ends(measure, cache, tmp_path):
    done = measure(*broken_model(tmp_path / "broken", cache, None), "measure.warmup=1")
    assert done.error.startswith("2 of 2 samples failed; their rows say why")
    assert len(failed_rows(done)) == 4  # both arms of both samples
    assert done.summary["num_measured"] == 0
    assert done.summary["tokens_per_second"] is None


def test_the_reason_why_all_samples_were_skipped_is_told(measure):
    done = measure("sampling.max_new_tokens=100000")
    assert done.error.startswith("all 2 samples were skipped, so nothing was measured; their rows say why: ")
    (first,) = done.rows().head(1)["error"]
    assert done.error.partition("say why: ")[2].startswith(first.splitlines()[0].rstrip("."))
    assert len(done.error.splitlines()) == 1


def test_running_out_of_memory_costs_one_sample(measure, tmp_path):
    done = measure(*local_questions(tmp_path), change=with_method("OutOfMemory"))
    (row,) = failed_rows(done).to_dict("records")
    assert (row["sample_id"], row["arm"]) == ("gsm8k/1", "method")
    assert row["error"].startswith("RuntimeError: DefaultCPUAllocator: can't allocate memory")
    assert done.error.startswith("1 of 4 samples failed; their rows say why")
    assert done.summary["num_measured"] == 3
    beside = done.rows("baseline")
    assert beside[beside["sample_id"] == "gsm8k/1"]["num_tokens"].item() == 8  # what was measured is kept
    told = (done.run_dir / "run.log").read_text(encoding="utf-8")
    assert "sample gsm8k/1 failed" in told
    assert "Traceback" in told


def test_a_turn_that_fails_ends_its_conversation(measure):
    done = measure("task=mt_bench", "num_samples=2", change=with_method("OutOfMemory"))
    rows = done.rows("method").set_index(["sample_id", "turn"])["finish_reason"]
    (broken,) = {sample for sample, _ in rows.index if (rows[sample] == "error").any()}
    assert rows[broken].to_dict() == {0: "length", 1: "error"}
    assert done.summary["num_measured"] == 1


def test_a_failed_sample_is_not_tried_again_by_the_same_command(measure, tmp_path):
    words = local_questions(tmp_path)
    first = measure(*words, change=with_method("OutOfMemory"))
    again = measure(*words, change=with_method("OutOfMemory"))
    assert again.error == first.error
    assert again.error.endswith("The same command tries them again with measure.retry_failed=true")
    assert again.samples.equals(first.samples)


def test_failed_samples_can_be_tried_again_and_the_others_stay(measure, tmp_path):
    words = local_questions(tmp_path)
    first = measure(*words, change=with_method("OutOfMemory"))
    assert len(first.samples) == 8  # read before the run goes on
    again = measure(*words, "measure.retry_failed=true", change=with_method("OutOfMemory"))  # it fails when asked twice
    assert (again.run_dir, again.error, again.status["num_failed"]) == (first.run_dir, None, 0)
    key = ["sample_id", "arm"]
    before, after = (found.samples.set_index(key)["started_at"] for found in (first, again))
    moved = {name for name in before.index if before[name] != after[name]}
    assert moved == {("gsm8k/1", "method"), ("gsm8k/1", "baseline")}


@pytest.mark.parametrize("method", ["pld", "sps"])
def test_a_method_that_drafts_nothing_finishes_and_says_so(measure, caplog, method):
    with caplog.at_level(logging.WARNING):
        done = measure(f"method={method}", "sampling.max_new_tokens=1")  # the budget of a draft is one token less
    assert f"method={method} drafted nothing in any step" in caplog.text
    assert done.error is None
    assert (done.status["status"], done.summary["num_measured"]) == ("finished", 2)
    assert "nothing was drafted" in closing_table(load_runs(done.run_dir)).notes[0]


def test_plain_decoding_is_not_blamed_for_drafting_nothing(measure, caplog):
    with caplog.at_level(logging.WARNING):
        measure("method=ar")
    assert "drafted nothing" not in caplog.text
