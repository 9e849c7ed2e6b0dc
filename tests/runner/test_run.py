"""A run as a whole: order, scope, summary, what is not repeated, and what a sweeper is given."""

from __future__ import annotations

import logging
import time

import pytest
import yaml

import specbench.runner
from specbench.results.files import read_json
from specbench.results.store import RunStore
from specbench.runner.planning import make_task, ordered_samples
from specbench.runner.session import CURVE_LENGTHS
from tests.runner.runs import local_questions, tiny_config, with_method

LETTERS = [f"{letter} is a letter." for letter in "ABCDEF"]


def test_what_outlives_a_sample_is_learnt_in_an_order_that_the_seed_fixes(tmp_path, cache):
    def order(*more):
        config = tiny_config([*local_questions(tmp_path, LETTERS), *more], tmp_path, cache)
        return [sample.id for sample in ordered_samples(config, make_task(config))]

    plain, first, other = order(), order("method.scope=run"), order("method.scope=run", "seed=1")
    assert plain == sorted(plain) == sorted(first) == sorted(other)
    assert len({tuple(plain), tuple(first), tuple(other)}) == 3
    assert first == order("method.scope=run")


@pytest.mark.parametrize(
    ("scope", "heard"), [("sample", [1, 1, 1, 1, 1, 1]), ("run", [1, 2, 3, 4, 5, 6]), ("task", [1, 2, 3, 4, 5, 6])]
)
def test_learning_ends_with_its_scope(measure, tmp_path, scope, heard):
    words = [*local_questions(tmp_path, LETTERS), f"method.scope={scope}", "measure.warmup=1", "measure.baseline=none"]
    done = measure(*words, change=with_method("Learning"))
    told = done.steps[done.steps["step"] == 0]["info"]
    assert [int(text.removeprefix('{"heard": ').removesuffix("}")) for text in told] == heard


def test_scope_task_starts_anew_with_each_subset_of_spec_bench(measure):
    words = ("task=spec_bench", "num_samples=null", "method.scope=task", "measure.baseline=none")
    done = measure(*words, "sampling.max_new_tokens=1", change=with_method("Learning"))
    told = done.steps.drop_duplicates("sample_id")["info"]
    starts = [text == '{"heard": 1}' for text in told]
    assert sum(starts) == 6  # the six subsets, each in one piece
    assert len(starts) > 6


def test_the_summary_names_the_run_and_holds_every_kind_of_number(measure):
    done = measure("method=sps", "num_samples=8")
    summary = done.summary
    assert summary["run_id"] == done.run_dir.name
    names = {key: summary[key] for key in ("model", "method", "controller", "task", "dtype", "model_name")}
    assert names == {
        "model": "tiny",
        "method": "sps",
        "controller": "fixed",
        "task": "gsm8k_mini",
        "dtype": "float32",
        "model_name": "tiny random pair",
    }
    assert summary["ci_low"] <= summary["walltime_speedup"] <= summary["ci_high"]
    assert summary["scores"].keys() == summary["baseline_scores"].keys() == {"accuracy"}
    assert [length for length, _ in summary["t_curve"]] == sorted(length for length, _ in summary["t_curve"])
    for name in ("acceptance_rate", "mat", "cost_ratio", "speedup_specbench", "peak_memory_bytes", "ttft_s"):
        assert summary[name] > 0
    phases = sum(summary[name] for name in ("draft_s", "verify_s", "adapt_s", "host_s"))
    assert phases == pytest.approx(summary["decode_s"])


def test_the_folder_holds_the_config_and_the_machine(measure):
    done = measure()
    config = yaml.safe_load((done.run_dir / "config.yaml").read_text())
    assert (config["hardware"]["device"], config["sampling"]["max_new_tokens"]) == ("cpu", 8)
    environment = read_json(done.run_dir / "environment.json")
    assert environment["num_threads"] == 1
    assert environment["target"]["revision"].startswith("local-")
    assert not (done.run_dir / "journal.jsonl").exists()


def test_a_finished_run_is_not_repeated_and_loads_no_model(measure, monkeypatch):
    first = measure("method=sps")
    monkeypatch.setattr(specbench.runner, "Session", None)
    began = time.perf_counter()
    again = measure("method=sps")
    assert time.perf_counter() - began < 3
    assert again.objective == first.objective
    assert again.samples.equals(first.samples)


def test_a_dry_run_lists_and_decodes_nothing(measure, monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(specbench.runner, "Session", None)
    with caplog.at_level(logging.INFO):
        done = measure("task=mt_bench", "dry_run=true")
    assert done.objective is None
    (line,) = [record.message for record in caplog.records if "samples" in record.message]
    assert line == f"{done.run_dir.name}: 2 samples, 4 turns, no earlier run to estimate the time from"
    assert not done.run_dir.exists()


def test_a_dry_run_estimates_from_earlier_runs(measure, caplog):
    measure()
    with caplog.at_level(logging.INFO):
        measure("num_samples=null", "dry_run=true")
    assert "10 samples, 10 turns, about " in caplog.text


def test_a_dry_run_of_a_finished_run_says_so(measure, caplog):
    done = measure()
    with caplog.at_level(logging.INFO):
        assert measure("dry_run=true").objective == 0.0
    assert f"{done.run_dir.name} is finished and not repeated, 0 s" in caplog.text


def test_a_dry_run_counts_only_what_is_left(measure, caplog):
    plan = measure("dry_run=true")
    with RunStore(plan.run_dir) as store:
        row = {"turn": 0, "arm": "method", "attempt": 0, "repeat": 0, "category": "", "used": True, "timed": True}
        store.append("gsm8k/0", [row | {"sample_id": "gsm8k/0", "finish_reason": "error"}])
    with caplog.at_level(logging.INFO):
        measure("dry_run=true")
    assert f"{plan.run_dir.name}: 1 of 2 samples left, 1 turns, no earlier run" in caplog.text


def test_the_page_of_metrics_names_the_lengths_that_are_measured(repo_root):
    page = (repo_root / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert f"a target pass over T = {', '.join(map(str, CURVE_LENGTHS))} new rows" in page


def test_a_search_that_never_ran_is_told_apart_from_no_search(measure):
    assert measure().summary["num_choices"] is None
    assert measure("seed=1", change=with_method("Searching")).summary["num_choices"] == 0


def test_a_generator_without_steps_has_no_mat_and_no_acceptance(measure):
    done = measure(change=with_method("WithoutSteps"))
    assert done.error is None
    assert [done.summary[name] for name in ("mat", "acceptance_rate", "draft_s")] == [None] * 3
    assert done.summary["walltime_speedup"] > 0
    assert not len(done.steps[done.steps["arm"] == "method"])


def test_an_objective_that_a_run_does_not_have_is_none(tmp_path, cache, calm):
    config = tiny_config(["objective=acceptance_rate"], tmp_path, cache)
    assert specbench.runner.run(config) is None  # ar drafts nothing


def test_what_breaks_before_the_first_sample_leaves_no_folder(measure, tmp_path):
    with pytest.raises(Exception, match="names no class"):
        measure(change=with_method("Nothing"))
    assert not (tmp_path / "results" / "runs").exists()
