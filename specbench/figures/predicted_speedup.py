"""Speedup that cost ratio, mat and t(T) promise, against the one measured."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from specbench.analysis.theory import curve_of, prediction
from specbench.figures.base import NAMES, NotEnoughData, finished_runs, in_order, looks, whisker
from specbench.figures.style import INK, NOISY_REMARK, grid, legend, mark_noisy, panels, remarks, styled
from specbench.results.frozen import Frozen

_NUMBERS = ["predicted_speedup", "walltime_speedup", "ci_low", "ci_high"]


def select(frozen: Frozen) -> pd.DataFrame:
    """One row a run with a measured speedup and all that a prediction needs."""
    runs = finished_runs(frozen, "walltime_speedup", "cost_ratio", "mat", "t_curve")
    predicted = [prediction(_known(run), curve_of(run["t_curve"])) for run in runs.to_dict("records")]
    runs = runs.assign(predicted_speedup=pd.Series(predicted, index=runs.index, dtype=float))
    runs = runs.dropna(subset="predicted_speedup").reset_index(drop=True)
    if runs.empty:
        raise NotEnoughData("no run that drafted anything has a measured cost ratio and t(T)")
    return runs.assign(noisy=runs["noisy"].eq(True))[[*NAMES, *_NUMBERS, "noisy"]]


def _known(run: dict[Any, Any]) -> dict[Any, Any]:
    histogram = run.get("verify_rows_histogram")
    return {**run, "verify_rows_histogram": None if isinstance(histogram, float) else histogram}


@styled
def build(frame: pd.DataFrame) -> Figure:
    """One panel a task, one point a run; below the diagonal host and adapt time cost what was promised."""
    styles, tasks = looks(frame), panels(frame)
    figure, axes = grid(len(tasks), height=2.1)
    most = 1.08 * float(frame[_NUMBERS].max().max())
    for axis, task in zip(axes, tasks, strict=True):
        axis.plot([0, most], [0, most], color=INK, linewidth=0.7, linestyle=":", label="as predicted")
        axis.axhline(1.0, color=INK, linewidth=0.6, linestyle="--")
        for row in in_order(frame[frame["panel"] == task], styles):
            look, speedup = styles[row["label"]], row["walltime_speedup"]
            error = whisker(row, "walltime_speedup")
            axis.errorbar(
                row["predicted_speedup"], speedup, yerr=error, label=row["label"], elinewidth=0.7, **look.of_point()
            )
            if row["noisy"]:
                mark_noisy(axis, row["predicted_speedup"], speedup)
        axis.set(title=task, xlabel="predicted speedup", xlim=(0, most), ylim=(0, most), aspect="equal")
    axes[0].set_ylabel("measured speedup")
    formula = "predicted = mat / (k c + t(1+k)/t(1)): host and adapt time are not in it"
    legend(figure, axes, remark=remarks((formula, True), (NOISY_REMARK, frame["noisy"].any())))
    return figure
