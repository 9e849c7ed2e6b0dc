from __future__ import annotations

import math

import pyarrow.parquet as pq
import pytest

from specbench.results.schema import LATER
from specbench.results.store import RunStore
from specbench.results.summary import IDENTITY, RUN_COLUMNS, load_choices, load_runs, load_samples, load_steps
from specbench.types import DataError
from tests.results.rows import sample, step

CONFIG = """
model: {name: tiny, target: x}
method: {name: sps, controller: {name: heuristic}}
task: {name: gsm8k}
hardware: {dtype: float32}
"""


def make_run(folder, *, status: str | None = "finished", **summary):
    with RunStore(folder) as store:
        store.write_config(CONFIG)
        store.append("a", [sample("a")], [step("a")])
        if status:
            store.finalize(summary, status=status)
    return folder


def test_one_row_a_run_with_everything_of_the_summary(tmp_path):
    make_run(tmp_path / "r1", task="gsm8k_mini", walltime_speedup=1.25, ci_low=None, scores={"accuracy": 0.5})
    make_run(tmp_path / "r2", walltime_speedup=float("nan"), noisy=True)
    runs = load_runs(tmp_path)
    assert tuple(runs.columns[: len(RUN_COLUMNS)]) == RUN_COLUMNS
    assert runs["run_id"].tolist() == ["r1", "r2"]
    first = runs.iloc[0]
    assert (first["model"], first["method"], first["controller"], first["dtype"]) == (
        "tiny", "sps", "heuristic", "float32",
    )  # fmt: skip
    assert first["task"] == "gsm8k_mini"  # the run names an embedded set itself
    assert runs["task"].tolist()[1] == "gsm8k"
    assert first["walltime_speedup"] == 1.25
    assert math.isnan(first["ci_low"])
    assert first["scores.accuracy"] == 0.5
    assert math.isnan(runs["walltime_speedup"][1])
    assert bool(runs["noisy"][1])
    assert first["run_dir"] == str(tmp_path / "r1")


def test_a_run_folder_or_its_grandparent_may_be_given(tmp_path):
    run = make_run(tmp_path / "results" / "runs" / "r1")
    for root in (run, run.parent, tmp_path / "results"):
        assert load_runs(root)["run_id"].tolist() == ["r1"]


@pytest.mark.parametrize("name", ["empty", "missing"])
def test_nothing_there_gives_empty_frames_with_the_columns(tmp_path, name):
    (tmp_path / "empty").mkdir()
    runs = load_runs(tmp_path / name)
    assert runs.empty
    assert tuple(runs.columns) == RUN_COLUMNS
    for load in (load_samples, load_steps, load_choices):
        frame = load(tmp_path / name)
        assert frame.empty
        assert tuple(frame.columns[: len(IDENTITY)]) == IDENTITY
        assert "sample_id" in frame.columns


@pytest.mark.parametrize("status", [None, "interrupted"])
def test_an_unfinished_run_has_no_numbers(tmp_path, status):
    make_run(tmp_path / "r1", status=status, walltime_speedup=9.0, tokens_per_second=9.0)
    row = load_runs(tmp_path).iloc[0]
    assert row["status"] == "interrupted"
    assert row["method"] == "sps"
    assert math.isnan(row["walltime_speedup"])
    assert math.isnan(row["tokens_per_second"])
    assert load_samples(tmp_path).empty


def test_failed_runs_keep_what_was_measured(tmp_path):
    make_run(tmp_path / "r1", status="failed", mat=2.0)
    assert load_runs(tmp_path)[["status", "mat"]].to_numpy().tolist() == [["failed", 2.0]]
    assert len(load_samples(tmp_path)) == 1


@pytest.mark.parametrize("file", ["status.json", "summary.json", "config.yaml"])
@pytest.mark.parametrize("content", ["{broken: [", "[1, 2]"])
def test_a_corrupt_file_gives_a_corrupt_row_that_names_it(tmp_path, file, content):
    make_run(tmp_path / "good", mat=2.0)
    (make_run(tmp_path / "bad", mat=3.0) / file).write_text(content)
    runs = load_runs(tmp_path).set_index("run_id")
    assert runs["status"].to_dict() == {"bad": "corrupt", "good": "finished"}
    assert file in runs["error"]["bad"]
    assert math.isnan(runs["mat"]["bad"])
    with pytest.raises(DataError, match=file):
        load_samples(tmp_path)


def test_a_missing_summary_is_corrupt(tmp_path):
    (make_run(tmp_path / "r1") / "summary.json").unlink()
    assert load_runs(tmp_path)["status"].tolist() == ["corrupt"]


def test_a_corrupt_table_is_named(tmp_path):
    path = make_run(tmp_path / "r1") / "steps.parquet"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match=r"steps\.parquet"):
        load_steps(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=r"steps\.parquet: missing"):
        load_steps(tmp_path)


def test_tables_of_several_runs_stand_below_each_other(tmp_path):
    make_run(tmp_path / "r1")
    make_run(tmp_path / "r2", method="pld")
    samples, steps = load_samples(tmp_path), load_steps(tmp_path)
    assert samples["run_id"].tolist() == ["r1", "r2"]
    assert samples["method"].tolist() == ["sps", "pld"]
    assert steps["controller"].tolist() == ["heuristic", "heuristic"]


def without_columns(path, names):
    pq.write_table(pq.read_table(path).drop_columns(list(names)), path)


def test_folders_written_before_a_column_was_added_are_read_with_nulls(tmp_path):
    run = make_run(tmp_path / "r1")
    without_columns(run / "steps.parquet", LATER["steps"])
    steps = load_steps(tmp_path)
    assert len(steps) == 1
    assert steps[list(LATER["steps"])].isna().all(axis=None)
    assert steps["num_accepted"].tolist() == [2]


def test_a_folder_that_lacks_another_column_is_corrupt(tmp_path):
    run = make_run(tmp_path / "r1")
    without_columns(run / "steps.parquet", ["num_accepted", "stop_reason"])
    with pytest.raises(DataError, match=r"steps\.parquet: lacks the columns \['num_accepted'\]"):
        load_steps(tmp_path)
