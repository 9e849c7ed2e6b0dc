"""Only what was measured alike is compared: conditions have rows and boards of their own."""

from __future__ import annotations

import pandas as pd
import pytest

from specbench.analysis.headline import _VARIED
from specbench.analysis.leaderboard import leaderboard_rows, leaderboard_table
from specbench.analysis.sweep_tables import sweep_rows
from specbench.analysis.tables import PAPERS, main_table
from specbench.results.opening import open_results
from specbench.results.published import load_published
from tests.analysis.test_tables import PUBLISHED, cells
from tests.results.folders import Spec, write_run

pytestmark = pytest.mark.usefixtures("few_draws")


def pacer_main(frozen):
    (paper,) = [paper for paper in PAPERS if paper.name == "pacer"]
    return main_table(paper, frozen, load_published(PUBLISHED))


OTHERWISE = [
    {"sampling": {"max_new_tokens": 256}},
    {"sampling": {"top_p": 0.5}},
    {"environment": {"device": "cuda:0", "gpu": {"name": "H200"}}},
    {"environment": {"num_threads": 1}},
]


@pytest.mark.parametrize("otherwise", OTHERWISE, ids=str)
def test_what_was_measured_otherwise_stands_in_a_row_of_its_own(tmp_path, otherwise):
    for spec in (Spec("a"), Spec("b", method="pacer", controller="pacer", speedup=2.0, **otherwise)):
        write_run(tmp_path, spec)
    frozen = open_results(tmp_path)
    rows = cells(pacer_main(frozen), source="ours")
    assert [(row["sps"].text == "-", row["pacer"].text == "-") for row in rows] in ([(0, 1), (1, 0)], [(1, 0), (0, 1)])
    assert len({row["task"].text + row["new tokens"].text for row in rows}) == 2, "the rows say what differs"
    boards = [set(own["arm"]) for _, own in leaderboard_rows(frozen).groupby(["machine", "board"])]
    assert sorted(boards, key=sorted) == [{"ar", "pacer"}, {"ar", "sps"}]


def test_a_board_says_its_machine_where_there_are_several(tmp_path):
    """Also where a task was measured on one of them only: no row then holds columns of two machines."""
    write_run(tmp_path, Spec("a", method="pacer", speedup=2.0))
    write_run(tmp_path, Spec("b", method="pld", task="cnn_dm", environment={"num_threads": 1}))
    write_run(tmp_path, Spec("c", environment={"num_threads": 1}))
    board = leaderboard_table(open_results(tmp_path), load_published(PUBLISHED))
    found = {(row["source"].text.rpartition(", ")[2], row["method"].text) for row in cells(board)}
    ours = {(machine, method) for machine, method in found if "thread" in machine}
    assert ours == {("2 threads", "ar"), ("2 threads", "pacer"), *(("1 thread", m) for m in ("ar", "pld", "sps"))}


def test_tasks_with_answers_of_their_own_length_are_one_board(tmp_path):
    for task, tokens in (("gsm8k", 256), ("cnn_dm", 128)):
        for method, speedup in (("sps", 1.2), ("pacer", 1.4)):
            name, sampling = f"{method}-{task}", {"max_new_tokens": tokens}
            write_run(tmp_path, Spec(name, method=method, task=task, speedup=speedup, sampling=sampling))
    rows = leaderboard_rows(open_results(tmp_path))
    assert set(rows["board"]) == {0}
    assert set(rows["new_tokens"]) == {"128 / 256"}
    assert set(rows[rows["column"] == "overall"]["arm"]) == {"ar", "sps", "pacer"}


def test_a_mean_over_tasks_needs_all_of_them(tmp_path):
    for name, task in (("a", "gsm8k"), ("b", "cnn_dm")):
        write_run(tmp_path, Spec(name, task=task))
    write_run(tmp_path, Spec("c", method="pld", acceptance=0.9))
    mats = leaderboard_rows(open_results(tmp_path)).drop_duplicates("arm").set_index("arm")["mat"]
    assert pd.isna(mats["pld"])
    assert mats["sps"] > 1


def test_a_column_whose_conversations_disagree_says_so(tmp_path):
    write_run(tmp_path, Spec("a"))
    write_run(tmp_path, Spec("bb", task="cnn_dm", spread=0.5))
    frozen, published = open_results(tmp_path), load_published(PUBLISHED)
    runs = frozen.runs.set_index("run_id")["noisy"]
    board = leaderboard_table(frozen, published)
    (row,) = [row for row in cells(board, method="sps") if row["source"].text.startswith("ours")]
    assert (runs["a"], "noisy" in row["math_reasoning"].text) == (False, False)
    assert (runs["bb"], "noisy" in row["summarization"].text) == (True, True)


def test_several_commits_are_said(tmp_path):
    write_run(tmp_path, Spec("a"))
    write_run(tmp_path, Spec("b", method="pacer", environment={"git": {"commit": "fedcba9876543210", "dirty": False}}))
    assert "Runs are of the commits 012345678, fedcba987." in pacer_main(open_results(tmp_path)).notes


def test_settings_of_a_sweep_are_judged_among_themselves(tmp_path):
    """Also where AR is faster than all of them, and where one is alone there is nothing to win."""
    slow = {"experiment": "pacer_block_size", "method": "pacer", "controller": "pacer"}
    for size, speedup in ((2, 0.8), (3, 0.9)):
        config = {"controller": {"block_size": size}}
        write_run(tmp_path, Spec(f"size{size}", config=config, speedup=speedup, **slow))
    write_run(tmp_path, Spec("alone", task="cnn_dm", config={"controller": {"block_size": 3}}, speedup=1.5, **slow))
    runs, _ = sweep_rows(open_results(tmp_path), "pacer_block_size")
    assert dict(zip(runs["run_id"], runs["best"], strict=True)) == {"size2": False, "size3": True, "alone": False}


def test_a_main_table_holds_what_its_methods_are_compared_in(tmp_path):
    """No setting of an ablation stands for the method, and no row holds AR alone."""
    write_run(tmp_path, Spec("main", experiment="pacer_main", method="pacer", controller="pacer", speedup=1.5))
    other = {"experiment": "pacer_threshold", "sampling": {"max_new_tokens": 32}}
    write_run(tmp_path, Spec("swept", method="pacer", controller="pacer", speedup=9.0, **other))
    write_run(tmp_path, Spec("plain", method="ar", controller="none", task="cnn_dm", drafted=0, speedup=1.0))
    frozen = open_results(tmp_path)
    ours = cells(pacer_main(frozen), source="ours")
    assert [(row["task"].text, row["pacer"].text[:4]) for row in ours] == [("gsm8k", "1.50")]
    assert set(leaderboard_rows(frozen).query("arm == 'pacer'")["speedup"].round(1)) == {1.5}


def test_experiments_that_vary_settings_are_known_by_their_names(repo_root):
    assert {path.stem for path in (repo_root / "conf" / "experiment").glob("*.yaml")} >= _VARIED
