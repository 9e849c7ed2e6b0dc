"""The matched-cell experiment as a user starts it: one command, its tables, and the same tables from stored rows."""

from __future__ import annotations

import pytest

from scripts import mla_report
from specbench.results.cells import load_cells, load_reconstruction
from specbench.results.summary import load_runs
from tests.e2e.command import Command, Done

MACHINE = ("hardware.device=cpu", "hardware.num_threads=1", "logger=none")
FEW = ("task=gsm8k", "method.converter=none,mha2mla", "method.reconstruction=none,functional")
TITLES = ("Acceptance, %", "functional - none", "none - original", "Drafts: cache measured on its tensors")


@pytest.fixture
def sweep(tmp_path, environment, results, cache):
    """Start the experiment in smoke size with more words and wait for its end."""

    def begin(*words: str) -> Done:
        paths = (f"paths.results_dir={results}", f"paths.cache_dir={cache}")
        given = ["experiment=mla_matched", "size=smoke", *MACHINE, *paths, *words]
        return Command(given, tmp_path / "command", environment=environment).wait(540)

    return begin


def check(done: Done, results) -> None:
    assert done.code == 0, done.stderr
    for title in TITLES:
        assert title in done.stdout
    assert mla_report.report(results).strip() in done.stdout


@pytest.mark.slow
def test_one_command_gives_the_tables_and_continues(sweep, results):
    done = sweep(*FEW)
    check(done, results)
    runs = load_runs(results)
    assert sorted(runs["method"]) == ["ar", "mla", "mla", "mla"]  # the original draft ran once for both variants
    assert set(runs["experiment"]) == {"mla_matched"}
    cells, layers = load_cells(results), load_reconstruction(results)
    assert cells.groupby("variant")["sample_id"].nunique().to_dict() == {"original": 8, "none": 8, "functional": 8}
    assert set(layers["variant"]) == {"none", "functional"}
    tuned = layers[layers["variant"] == "functional"]
    assert (tuned["error_after"] <= tuned["error_before"]).all()
    again = sweep(*FEW)
    check(again, results)
    assert list(load_runs(results)["finished_at"]) == list(runs["finished_at"])


@pytest.mark.slow
def test_the_whole_smoke_size(sweep, results):
    check(sweep(), results)
    cells = load_cells(results)
    assert set(cells["converter"]) == {"none", "transmla", "mha2mla"}
    assert set(cells["task"]) == {"gsm8k_mini", "cnn_dm_mini"}
    assert cells.groupby(["converter", "variant", "task"]).ngroups == 2 + 2 * 3 * 2
