from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

from specbench.config import as_dict, compose, job_key
from specbench.results.experiments import join_experiment
from specbench.results.files import write_json
from specbench.results.frozen import ALONE, Frozen, freeze, join_frozen, load_frozen
from specbench.results.opening import open_results
from specbench.results.store import RunStore
from specbench.results.summary import IDENTITY, RUN_COLUMNS, load_choices, load_samples, load_steps
from specbench.types import DataError
from tests.results.rows import choice, sample, step

CONFIG = {
    "model": {"name": "tiny", "target": "/home/me/models/target"},
    "method": {
        "name": "sps",
        "_target_": "a.B",
        "controller": {"name": "fixed", "_target_": "c.D", "num_draft_tokens": 5},
    },
    "task": {"name": "gsm8k", "context_tokens": 1024},
    "data": {"source": "local", "dir": "/home/me/data"},
    "hardware": {"name": "auto", "dtype": "float32", "device": "cpu", "num_threads": 2},
    "paths": {"results_dir": "/home/me/results", "cache_dir": "/home/me/cache"},
    "logger": {"name": "console"},
}
ENVIRONMENT = {
    "python": "3.11",
    "versions": {"torch": "2.9"},
    "git": {"commit": "abc", "dirty": False},
    "cpu": {"model": "CPU"},
    "num_threads": 2,
    "device": "cpu",
}
PASS = {"context": 128, "attention": 2, "mlp": 2, "head": True, "seconds": 0.5, "fitted_s": 0.4}
LATENCY = {
    "profile": "p1",
    "key": {"model": "m", "dtype": "float32", "device": "cpu", "threads": 1, "cpu": "CPU"},
    "model": {"attention_slope": 1e-6, "attention_base": 1e-3, "mlp": 2e-3, "head": 3e-3, "fixed": 0.0, "noisy": False},
    "passes": [{**PASS, "attention_s": 0.1, "mlp_s": 0.1}],
}


def make_run(
    folder: Path,
    *,
    experiment: str | None = "headline",
    status: str = "finished",
    size: str = "embedded",
    **method: object,
) -> Path:
    config = {**CONFIG, "method": {**CONFIG["method"], **method}, "experiment_name": experiment, "size": size}
    baseline = {"turn": 0, "arm": "baseline", "attempt": 0, "repeat": 0}
    with RunStore(folder) as store:
        store.write_config(yaml.safe_dump(config))
        store.write_environment(ENVIRONMENT)
        samples = [sample("a", load_before=0.5, load_after=0.1), sample("a", arm="baseline", load_before=0.3)]
        store.append("a", samples, [step("a"), step("a", key=baseline)], [choice("a")])
        store.finalize({"walltime_speedup": 1.25, "acceptance_by_position": [0.5, 0.25]}, status=status)
    return folder


@pytest.fixture
def results(tmp_path: Path) -> Path:
    make_run(tmp_path / "results/runs/r1")
    make_run(tmp_path / "results/runs/r2", experiment="pacer_main", threshold=0.5)
    return tmp_path / "results"


def contents(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*.parquet")}


def test_rows_come_back_as_the_loaders_give_them(results, tmp_path):
    assert freeze(results, tmp_path / "paper") == ["r1", "r2"]
    frozen = load_frozen(tmp_path / "paper")
    pd.testing.assert_frame_equal(frozen.samples, load_samples(results))
    for name, load in (("steps", load_steps), ("choices", load_choices)):
        rows = load(results)
        expected = rows[rows["arm"] == "method"].reset_index(drop=True)
        assert len(expected) == 2
        pd.testing.assert_frame_equal(getattr(frozen, name), expected)


def test_runs_say_where_their_numbers_come_from(results, tmp_path):
    write_json(results / "runs/r1/latency.json", LATENCY)
    freeze(results, tmp_path / "paper")
    frozen = load_frozen(tmp_path / "paper")
    run = frozen.runs.set_index("run_id").loc["r1"]
    assert (run["walltime_speedup"], run["commit"], bool(run["dirty"]), run["threads"]) == (1.25, "abc", False, 2)
    assert run["load"] == pytest.approx(0.3)
    assert run["version.torch"] == "2.9"
    assert run["experiment"] == "headline"
    assert list(run["acceptance_by_position"]) == [0.5, 0.25]
    assert (run["cfg.method.controller.num_draft_tokens"], run["cfg.task.context_tokens"]) == (5, 1024)
    assert run["job"] == job_key(CONFIG)
    profile = frozen.profiles.iloc[0]
    assert (profile["run_id"], profile["context"], profile["seconds"], profile["fit.mlp"]) == ("r1", 128, 0.5, 2e-3)
    assert set(frozen.profiles["run_id"]) == {"r1"}


def test_no_folder_of_the_machine_is_frozen(results, tmp_path):
    freeze(results, tmp_path / "paper")
    tables = [pq.read_table(path) for path in (tmp_path / "paper").rglob("*.parquet")]
    text = json.dumps([table.to_pylist() for table in tables], default=str)
    assert tables
    assert "/home/me" not in text
    assert str(tmp_path) not in text
    assert load_frozen(tmp_path / "paper").runs["cfg.model.target"].tolist() == ["target", "target"]


def test_freezing_again_writes_nothing(results, tmp_path):
    freeze(results, tmp_path / "paper")
    before = contents(tmp_path / "paper")
    freeze(results, tmp_path / "paper")
    assert len(before) == 8
    assert contents(tmp_path / "paper") == before


def test_a_run_measured_again_replaces_its_rows_and_others_stay(results, tmp_path):
    freeze(results, tmp_path / "paper")
    other = tmp_path / "elsewhere"
    for name in ("r2", "r3"):
        make_run(other / "runs" / name, experiment="pacer_main", threshold=0.75)
    freeze(other, tmp_path / "paper")
    frozen = load_frozen(tmp_path / "paper")
    assert sorted(frozen.runs["run_id"]) == ["r1", "r2", "r3"]
    assert frozen.runs.set_index("run_id")["cfg.method.threshold"].to_dict()["r2"] == 0.75
    assert frozen.samples["run_id"].value_counts().to_dict() == {"r1": 2, "r2": 2, "r3": 2}


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_what_did_not_finish_is_left_out(results, tmp_path, status, caplog):
    make_run(results / "runs/r9", status=status)
    freeze(results, tmp_path / "paper")
    assert "r9" not in load_frozen(tmp_path / "paper").runs["run_id"].tolist()
    assert "r9 is not finished" in caplog.text


def test_a_run_serves_several_experiments(results, tmp_path):
    join_experiment(results / "runs/r1", "pacer_block_size")
    freeze(results, tmp_path / "paper")
    frozen = load_frozen(tmp_path / "paper")
    assert frozen.of("headline").runs["run_id"].tolist() == ["r1"]
    assert frozen.of("pacer_block_size").samples["run_id"].unique().tolist() == ["r1"]
    assert sorted(frozen.of("headline", "pacer_main").runs["run_id"]) == ["r1", "r2"]
    assert frozen.of("confl_main").steps.empty


def test_a_frozen_run_joins_an_experiment_and_stays_in_it(results, tmp_path):
    freeze(results, tmp_path / "paper")
    job = load_frozen(tmp_path / "paper").of("headline").runs["job"].item()
    join_frozen(tmp_path / "paper", "confl_main", [job])
    freeze(results, tmp_path / "paper")
    assert load_frozen(tmp_path / "paper").of("confl_main").runs["run_id"].tolist() == ["r1"]


def test_a_run_frozen_for_another_experiment_moves_there_and_serves_both(results, tmp_path):
    make_run(results / "runs/r3")
    freeze(results, tmp_path / "paper")
    elsewhere = tmp_path / "elsewhere"
    make_run(elsewhere / "runs/r1", experiment="pacer_main", threshold=0.75)
    freeze(elsewhere, tmp_path / "paper")
    frozen = load_frozen(tmp_path / "paper")
    assert sorted(frozen.runs["run_id"]) == ["r1", "r2", "r3"]
    for name in ("samples", "steps", "choices"):
        rows = getattr(frozen, name)
        assert rows["run_id"].value_counts().to_dict() == dict.fromkeys(
            ("r1", "r2", "r3"), 2 if name == "samples" else 1
        )
    moved = frozen.runs.set_index("run_id").loc["r1"]
    assert (moved["experiment"], list(moved["experiments"])) == ("pacer_main", ["headline", "pacer_main"])
    assert moved["cfg.method.threshold"] == 0.75


def test_an_experiment_whose_only_run_moved_leaves_no_files(results, tmp_path):
    freeze(results, tmp_path / "paper")
    make_run(tmp_path / "elsewhere/runs/r1", experiment="pacer_main")
    freeze(tmp_path / "elsewhere", tmp_path / "paper")
    assert not list((tmp_path / "paper/headline").glob("*.parquet"))
    assert sorted(load_frozen(tmp_path / "paper").runs["run_id"]) == ["r1", "r2"]


def test_a_run_that_stands_twice_is_an_error_and_freezing_it_again_repairs_it(results, tmp_path):
    freeze(results, tmp_path / "paper")
    shutil.copytree(tmp_path / "paper/headline", tmp_path / "paper/pacer_block_size")
    with pytest.raises(DataError, match="r1 frozen more than once"):
        load_frozen(tmp_path / "paper")
    freeze(results, tmp_path / "paper")
    assert sorted(load_frozen(tmp_path / "paper").runs["run_id"]) == ["r1", "r2"]


@pytest.mark.parametrize("size", [None, "embedded"])
def test_a_run_killed_before_its_first_file_is_left_out(results, tmp_path, size, caplog):
    RunStore(results / "runs/r9").close()
    assert not (results / "runs/r9/config.yaml").exists()
    assert freeze(results, tmp_path / "paper", size=size) == ["r1", "r2"]
    assert "r9 is not finished" in caplog.text
    assert sorted(open_results(results).runs["run_id"]) == ["r1", "r2"]


def test_runs_without_an_experiment_have_a_folder_too(tmp_path):
    make_run(tmp_path / "results/runs/r1", experiment=None)
    freeze(tmp_path / "results", tmp_path / "paper")
    assert (tmp_path / "paper" / ALONE / "runs.parquet").is_file()
    assert load_frozen(tmp_path / "paper").of(ALONE).runs.empty


def test_only_one_size_of_experiments_may_be_asked_for(results, tmp_path):
    make_run(results / "runs/r8", experiment=None)
    make_run(results / "runs/r9", size="smoke")
    assert freeze(results, tmp_path / "paper", size="embedded") == ["r1", "r2"]
    assert freeze(results, tmp_path / "paper") == ["r1", "r2", "r8", "r9"]


def test_values_that_differ_in_type_become_text(tmp_path):
    make_run(tmp_path / "results/runs/r1", threshold="auto")
    make_run(tmp_path / "results/runs/r2", threshold=0.7)
    freeze(tmp_path / "results", tmp_path / "paper")
    assert load_frozen(tmp_path / "paper").runs["cfg.method.threshold"].tolist() == ["auto", "0.7"]


def test_nothing_there_gives_empty_frames_with_their_columns(tmp_path):
    frozen = load_frozen(tmp_path / "missing")
    assert set(RUN_COLUMNS) < set(frozen.runs.columns)
    for name in ("samples", "steps", "choices"):
        frame = getattr(frozen, name)
        assert frame.empty
        assert tuple(frame.columns[: len(IDENTITY)]) == IDENTITY
    assert frozen.profiles.empty
    assert "seconds" in frozen.profiles.columns
    assert isinstance(frozen.of("headline"), Frozen)


def test_a_damaged_file_is_named(results, tmp_path):
    freeze(results, tmp_path / "paper")
    (tmp_path / "paper/headline/steps.parquet").write_bytes(b"no")
    with pytest.raises(DataError, match=r"headline/steps\.parquet"):
        load_frozen(tmp_path / "paper")


def test_a_job_is_the_same_on_every_machine():
    length = "sampling.max_new_tokens=96"
    here = compose(["data=local", "data.dir=/somewhere", "hardware=cpu", "experiment_name=headline", length])
    there = compose(["data=embedded", "hardware=h200", length])
    assert job_key(as_dict(here)) == job_key(as_dict(there))
    assert job_key(as_dict(here)) != job_key(as_dict(compose(["hardware.dtype=float32"])))
