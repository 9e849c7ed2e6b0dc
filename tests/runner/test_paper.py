"""What a paper needs: missing runs are found, run, frozen, and counted as done from then on, here and in a clone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from specbench.config import experiments
from specbench.results.files import write_json
from specbench.results.frozen import load_frozen
from specbench.runner.estimate import Estimator
from specbench.runner.paper import Plan, carry_out, overview, plan, plans
from tests.runner.runs import tiny_config

QUICK = ("size=smoke", "logger=none", "hardware.device=cpu", "hardware.num_threads=1", "measure.drift_repeats=0")
TRAINED_QUICKLY = ("artefact.num_prompts=4", "artefact.max_new_tokens=16")


def words_for(results: Path, cache: Path) -> list[str]:
    return [*QUICK, f"paths.results_dir={results}", f"paths.cache_dir={cache}"]


@pytest.fixture
def words(tmp_path: Path, cache: Path) -> list[str]:
    return words_for(tmp_path / "results", cache)


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    return tmp_path / "paper"


@pytest.fixture(scope="module")
def done(tmp_path_factory: Any, cache: Path) -> tuple[list[Plan], Path, Path]:
    """Two experiments that need the same two runs: their plans, the results folder, the frozen folder."""
    folder = tmp_path_factory.mktemp("done")
    made = plans(["confl_main", "confl_overhead"], words_for(folder / "results", cache), ())
    for each in made:
        assert carry_out(each, folder / "paper") == []
    return made, folder / "results", folder / "paper"


def keys(plan: Plan) -> list[str]:
    return [job.key for job in plan.missing]


def test_missing_runs_are_run_and_frozen(done: Any) -> None:
    (main, _), results, paper = done
    assert [job.config.method.name for job in main.missing] == ["confl", "swift"]
    frozen = load_frozen(paper).of("confl_main")
    assert set(frozen.runs["job"]) == set(keys(main))
    assert frozen.steps["run_id"].nunique() == 2
    assert frozen.runs[["commit", "load", "walltime_speedup"]].notna().all(axis=None)
    assert frozen.runs["run_id"].tolist() == sorted(path.name for path in (results / "runs").iterdir())


def test_what_is_there_is_not_run_again(done: Any, cache: Path, tmp_path: Path) -> None:
    (main, _), results, paper = done
    assert plan("confl_main", words_for(results, cache), ()).missing == []
    here = words_for(tmp_path / "results", cache)
    assert keys(plan("confl_main", here, ())) == keys(main)
    jobs = set(load_frozen(paper).runs["job"])
    assert plan("confl_main", here, jobs).missing == []  # a clone that carries the frozen files
    assert keys(plan("confl_main", [*here, "num_samples=2"], jobs)) != []


def test_experiments_that_need_the_same_run_share_it(done: Any) -> None:
    (_, overhead), _, paper = done
    assert len(overhead.jobs) == 2
    assert overhead.missing == []
    frozen = load_frozen(paper)
    assert len(frozen.runs) == 2
    assert set(frozen.of("confl_overhead").runs["run_id"]) == set(frozen.of("confl_main").runs["run_id"])


def test_what_was_interrupted_is_continued(done: Any, cache: Path, tmp_path: Path) -> None:
    (main, _), results, _ = done
    shutil.copytree(results, tmp_path / "results")
    here = words_for(tmp_path / "results", cache)
    write_json(tmp_path / "results" / "runs" / main.missing[1].run_dir.name / "status.json", {"status": "interrupted"})
    assert keys(plan("confl_main", here, ())) == [main.missing[1].key]


def test_the_time_is_estimated_from_runs_of_the_same_model(done: Any, tmp_path: Path) -> None:
    (main, _), _, paper = done
    rows = load_frozen(paper).samples
    own = rows[rows["method"] == "swift"].set_index("arm")
    others = rows[rows["arm"] == "baseline"]
    per_ten = 10 * (own["prefill_s"] + own["decode_s"])["method"]
    per_ten += 10 * (others["prefill_s"].mean() + others["decode_s"].sum() / others["num_tokens"].sum() * 8)
    config = main.missing[1].config
    assert Estimator(rows).seconds(config, 10) == pytest.approx(per_ten, rel=0.01)
    assert Estimator(rows).seconds(tiny_config(["hardware.dtype=float16"], tmp_path, tmp_path), 10) is None
    like_those = [f"hardware.dtype={config.hardware.dtype}", "sampling.max_new_tokens=8"]
    replayed = tiny_config(["method=sps", "measure.acceptance=replay", *like_those], tmp_path, tmp_path)
    one_pass = others["prefill_s"].sum() / others["prompt_tokens"].sum() * (others["prompt_tokens"].mean() + 8)
    assert Estimator(rows).seconds(replayed, 10) == pytest.approx(10 * one_pass, rel=0.01)


@pytest.mark.slow
def test_a_job_that_cannot_run_is_told_and_the_others_are_frozen(words: list[str], paper: Path) -> None:
    only = [*words, "artefact.if_missing=error", "method=confl,sps", "method/controller=fixed,pacer"]
    half = plan("confl_window", [*only, "method.window_mode=adaptive"], ())
    assert len(half.jobs) == 2
    assert len(half.problems) == 1
    assert "method.window_mode: no such key" in half.problems[0]
    problems = carry_out(half, paper)
    assert len(problems) == 2
    assert "method=confl " in problems[1]
    assert "method/controller=pacer" in problems[1]
    assert "no pacer is stored" in problems[1]
    assert load_frozen(paper).runs["controller"].tolist() == ["fixed"]


def test_an_experiment_that_is_not_legal_is_one_problem(words: list[str], paper: Path) -> None:
    broken = plan("confl_window", [*words, "method=conflayers"], ())
    assert broken.jobs == []
    assert len(broken.problems) == 1
    assert "method=conflayers: no such choice" in broken.problems[0]
    assert carry_out(broken, paper) == broken.problems
    assert "confl_window: cannot run: method=conflayers" in overview([broken])


@pytest.mark.slow
@pytest.mark.parametrize("name", experiments())
def test_every_experiment_runs_small(name: str, words: list[str], paper: Path) -> None:
    made = plan(name, [*words, *TRAINED_QUICKLY], ())
    assert made.missing
    assert carry_out(made, paper) == []
    frozen = load_frozen(paper)
    assert set(keys(made)) <= set(frozen.of(name).runs["job"])
    assert (frozen.runs["status"] == "finished").all()
