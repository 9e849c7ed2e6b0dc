"""Experiments from outside: `python run.py experiment=NAME size=smoke`, and a dry run of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import freeze_runs
from specbench.results.frozen import load_frozen
from specbench.results.summary import load_runs
from tests.e2e.conftest import Run


@pytest.mark.slow
def test_an_experiment_is_one_word(tmp_path: Path, experiment: Run, results: Path) -> None:
    done = experiment("experiment=confl_window", "size=smoke", "logger=none")
    assert done.code == 0, done.stderr
    assert done.stdout.rstrip().endswith("3 of 3 jobs done")
    runs = load_runs(results)
    assert runs["experiment"].tolist() == ["confl_window"] * 3
    again = experiment("experiment=confl_main", "size=smoke", "logger=none", "method=confl")
    assert "is finished and not repeated" in again.stderr
    shared = load_runs(results).set_index("run_id")["experiments"]
    assert sorted(map(tuple, shared)) == [("confl_main", "confl_window"), ("confl_window",), ("confl_window",)]
    assert freeze_runs.main([str(results), "--to", str(tmp_path / "paper"), "--size", "smoke"]) == 0
    assert len(load_frozen(tmp_path / "paper").of("confl_main").runs) == 1
    assert freeze_runs.main([str(results), "--to", str(tmp_path / "empty")]) == 1


@pytest.mark.slow
def test_a_dry_run_lists_jobs_and_runs_nothing(experiment: Run, results: Path) -> None:
    done = experiment("experiment=confl_window", "size=smoke", "dry_run=true")
    assert done.code == 0, done.stderr
    assert done.stderr.count("1 samples, 1 turns") == 3
    assert "3 jobs planned, none run: about" in done.stdout
    assert not (results / "runs").exists()


def test_a_size_that_is_not_one_is_one_error(experiment: Run) -> None:
    done = experiment("experiment=confl_window", "size=big")
    assert done.code == 2
    assert done.error_lines == ["ERROR: size=big: not a legal value. Legal: smoke, embedded, published"]
