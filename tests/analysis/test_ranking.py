from __future__ import annotations

import pandas as pd
import pytest

from specbench.analysis.ranking import ranking_notes

ARMS = ("ar", "sps", "pacer")


def ours(speedups):
    """Rows of `headline`: (task, arm) -> speedup."""
    place = {"model": "m", "dtype": "float32", "sampling": "greedy", "conditions": ""}
    rows = [place | {"task": t, "place": t, "arm": arm, "walltime_speedup": s} for (t, arm), s in speedups.items()]
    return pd.DataFrame(rows).assign(mat=float("nan"), num_steps=float("nan"))


def theirs(task, **speedups):
    place = {"paper": "p", "model": "M", "task": task, "metric": "speedup"}
    return pd.DataFrame([place | {"method": method, "value": value} for method, value in speedups.items()])


# Faster than AR on gsm8k; on cnn_dm so slow that the mean over both is below 1.
TWO_TASKS = {("gsm8k", "pacer"): 1.23, ("cnn_dm", "pacer"): 0.7}


@pytest.mark.parametrize("name", ["gsm8k", "gsm8k_mini"])
def test_a_published_cell_is_compared_with_the_same_task(name):
    measured = ours({(name if task == "gsm8k" else task, arm): s for (task, arm), s in TWO_TASKS.items()})
    assert ranking_notes(measured, theirs("gsm8k", pacer=3.09), ARMS) == []
    (note,) = ranking_notes(measured, theirs("cnn_dm", pacer=3.09), ARMS)
    assert note == "The published order pacer > ar (M on cnn_dm) is not ours: ar 1.00 > pacer 0.70 on cnn_dm."


@pytest.mark.parametrize("task", ["any", "humaneval"])
def test_without_that_task_the_mean_over_ours_is_compared_and_called_so(task):
    (note,) = ranking_notes(ours(TWO_TASKS), theirs(task, pacer=3.09), ARMS)
    assert note.startswith(f"The published order pacer > ar (M on {task}) is not ours: ar 1.00 > pacer 0.93, geometric")


def test_cells_of_one_published_order_are_told_apart_by_what_ours_says():
    measured = ours({("gsm8k", "sps"): 1.5, ("gsm8k", "pacer"): 1.2, ("cnn_dm", "sps"): 1.3, ("cnn_dm", "pacer"): 1.1})
    cells = pd.concat([theirs(task, sps=1.1, pacer=2.0) for task in ("gsm8k", "cnn_dm")])
    notes = ranking_notes(measured, cells, ARMS)
    assert [note.partition("is not ours: ")[2] for note in notes] == [
        "sps 1.50 > pacer 1.20 > ar 1.00 on gsm8k.",
        "sps 1.30 > pacer 1.10 > ar 1.00 on cnn_dm.",
    ]
