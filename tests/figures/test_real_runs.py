"""Two real jobs on the tiny pair, frozen and drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from specbench.figures.catalogue import draw_all
from specbench.results.frozen import freeze, load_frozen
from tests.runner.runs import measured, tiny_config

PROFILE = ("method.profile_lengths=[16,32]", "method.profile_warmup=1", "method.profile_iters=2")
SEARCH = ("method.window_tokens=4", "method.interval_tokens=8", "method.search_budget=null", "method.guard=none")
DRAWN = ("speedup_by_task", "time_breakdown", "accepted_vs_drafted", "skip_heatmap", "latency_fit")


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, cache = tmp_path_factory.mktemp("real"), tmp_path_factory.mktemp("cache")
    for words in (("method=sps",), ("method=knapspec", *PROFILE, *SEARCH)):
        run = measured(tiny_config(["sampling.max_new_tokens=32", *words], folder / "results", cache))
        assert run.error is None
    freeze(folder / "results", folder / "paper")
    return folder / "paper"


@pytest.mark.slow
def test_real_runs_give_figures(paper: Path, tmp_path: Path) -> None:
    outcomes = list(draw_all(load_frozen(paper), tmp_path, DRAWN))
    assert [outcome.reason for outcome in outcomes if not outcome.files] == []
    assert {path.suffix for path in tmp_path.iterdir()} == {".pdf", ".png", ".csv", ".json"}


def test_the_profile_that_a_run_planned_with_is_kept(paper: Path) -> None:
    frozen = load_frozen(paper)
    passes = frozen.profiles
    assert set(passes["context"]) == {16, 32}
    assert set(passes["run_id"]) == set(frozen.runs.loc[frozen.runs["method"] == "knapspec", "run_id"])
    assert (passes[["seconds", "fitted_s"]] > 0).all().all()
