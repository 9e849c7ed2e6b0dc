"""Folders that are mirrored later look as if they had been logged live."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import wandb

from scripts.wandb_upload import main
from specbench.config import compose, run_id
from tests.loggers import wandb_file
from tests.loggers.runs import write_run


@pytest.fixture(autouse=True)
def no_account(monkeypatch):
    """No key and no settings of whoever runs the tests, and nothing goes out."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", os.devnull)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")


@pytest.fixture(scope="module")
def composed():
    return compose(["logger.tags=[mine]", "logger.group=my_sweep", "seed=7"])  # an id of its own in this process


@pytest.fixture
def config(composed, tmp_path):
    return replace(composed, paths=replace(composed.paths, results_dir=str(tmp_path / "results")))


@pytest.fixture
def folder(config) -> Path:
    return write_run(config)[0]


def test_a_finished_folder_becomes_a_complete_run(folder, config, tmp_path, capsys):
    moved = tmp_path / "elsewhere" / "runs" / folder.name
    shutil.copytree(folder, moved)
    (moved.parent / "begun").mkdir()
    (moved.parent / "begun" / "config.yaml").write_text((folder / "config.yaml").read_text())
    assert main([str(moved.parent), "--mode", "offline", "--project", "later"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"left out: {moved.parent}/begun (interrupted)",
        f"mirrored: {moved}",
    ]
    (file,) = (tmp_path / "elsewhere" / "wandb").glob("offline-run-*/run-*.wandb")
    run = wandb_file.run(file)
    assert (run.run_id, run.project, run.run_group, run.job_type) == (run_id(config), "later", "my_sweep", "pld")
    assert "mine" in run.tags
    assert wandb_file.config(file)["environment.versions.torch"] == "2"
    assert wandb_file.summary(file)["walltime_speedup"] == 2.0
    rows = [row for row in wandb_file.history(file) if "tokens_per_second" in row]
    assert [(row["num_samples"], row["walltime_speedup"]) for row in rows] == [(1, 2.0), (2, 2.0)]
    assert set(wandb_file.charts(file)) == {
        "charts/acceptance_by_position",
        "charts/time_by_phase",
        "charts/verify_cost",
    }
    assert len(wandb_file.table(file, "samples")) == 6  # both arms of two conversations, one of them measured twice
    assert ("results", run_id(config)) in wandb_file.artifacts(file)


def test_a_folder_without_runs_is_a_failure(tmp_path, capsys):
    assert main([str(tmp_path), "--mode", "offline"]) == 1
    assert capsys.readouterr().err == f"no runs in {tmp_path}\n"


def test_online_needs_a_login(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main([str(folder)]) == 1
    assert "wandb login" in capsys.readouterr().err


def test_what_wandb_refuses_is_one_line_and_the_others_go_on(folder, monkeypatch, capsys):
    other = folder.with_name("other")
    shutil.copytree(folder, other)

    def refuse(**settings):
        raise wandb.errors.UsageError(f"run {settings['id']} exists already")

    monkeypatch.setattr(wandb, "init", refuse)
    assert main([str(folder.parent), "--mode", "offline"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert {line.partition(": W&B refused it ")[0] for line in lines} == {f"error: {folder.name}", "error: other"}
    assert "exists already" in lines[0]
