"""Files of a figure, and the command that draws all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from scripts.make_figures import main
from specbench.figures import speedup_by_task
from specbench.figures.catalogue import FIGURES, draw_all, parts
from specbench.figures.save import Drawn, save
from specbench.results.frozen import Frozen


def test_a_figure_says_where_it_comes_from(frozen: Frozen, tmp_path: Path) -> None:
    frame = speedup_by_task.select(frozen)
    paths = [save(Drawn("it", speedup_by_task.build(frame), frame), tmp_path / name, frozen.runs, {}) for name in "ab"]
    assert [path.name for path in paths[0]] == ["it.pdf", "it.png", "it.csv", "it.json"]
    for first, second in zip(*paths, strict=True):
        assert first.read_bytes() == second.read_bytes()  # drawn again, nothing to commit
    stored = pd.read_csv(paths[0][2])
    assert stored["walltime_speedup"].tolist() == pytest.approx(frame["walltime_speedup"].tolist())
    origin = json.loads(paths[0][3].read_text())
    assert set(origin["runs"]) == set(frame["run_id"])
    assert {run["commit"] for run in origin["runs"].values()} == {"c0ffee"}
    assert {"python", "matplotlib", "specbench"} <= set(origin["versions"])


def test_each_experiment_has_its_figure_and_other_runs_share_one(frozen: Frozen) -> None:
    names = [part.name for part in parts(frozen)]
    assert "sweep-confl_lambda" in names
    assert "speedup_by_task" in names
    assert len(names) == len(set(names))
    assert {part.module for part in parts(frozen)} == set(FIGURES)
    whole = next(part for part in parts(frozen, ["speedup_by_task"]))
    assert "confl_lambda" not in {name for names in whole.frozen.runs["experiments"] for name in names}


def test_runs_that_only_a_table_is_made_of_are_in_no_figure(frozen: Frozen) -> None:
    tabled = replace(frozen, runs=frozen.runs.assign(experiments=[["draft_vocab"]] * len(frozen.runs)))
    assert [len(part.frozen.runs) for part in parts(tabled, ["speedup_by_task", "cumulative_speedup"])] == [0, 0]


def test_one_broken_figure_does_not_cost_the_others(frozen: Frozen, tmp_path: Path, monkeypatch) -> None:
    def broken(frame: pd.DataFrame) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(speedup_by_task, "build", broken)
    found = list(draw_all(frozen, tmp_path, ["speedup_by_task", "stop_reasons"]))
    assert [bool(outcome.files) for outcome in found] == [False, True]
    assert found[0].reason == "ZeroDivisionError: a fault"


def test_the_command_draws_what_there_is_data_for(paper: Path, tmp_path: Path, capsys) -> None:
    assert main(["--results", str(paper), "--out", str(tmp_path), "--only", "speedup_by_task", "mla_forest"]) == 0
    told = capsys.readouterr()
    assert (tmp_path / "speedup_by_task.pdf").is_file()
    assert "not drawn: mla_forest: no matched cells" in told.err
    assert not (tmp_path / "mla_forest.png").exists()


def test_strict_wants_every_figure(paper: Path, tmp_path: Path) -> None:
    assert main(["--results", str(paper), "--out", str(tmp_path), "--only", "mla_forest", "--strict"]) == 1
    assert main(["--results", str(paper), "--out", str(tmp_path), "--only", "time_breakdown", "--strict"]) == 0


def test_a_folder_of_runs_is_drawn_like_a_frozen_one(results: Path, paper: Path, tmp_path: Path) -> None:
    for name, folder in (("runs", results), ("frozen", paper)):
        assert main(["--results", str(folder), "--out", str(tmp_path / name), "--only", "stop_reasons"]) == 0
    one, other = (tmp_path / name / "stop_reasons.csv" for name in ("runs", "frozen"))
    assert one.read_text() == other.read_text()


def test_a_folder_without_results_is_an_error(tmp_path: Path, capsys) -> None:
    assert main(["--results", str(tmp_path / "nowhere")]) == 2
    assert main(["--results", str(tmp_path)]) == 2
    assert "neither frozen results nor runs" in capsys.readouterr().err
