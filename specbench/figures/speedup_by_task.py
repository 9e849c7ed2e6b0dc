"""Speedup over AR by task, with 95 % intervals over conversations."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specbench.figures.base import NAMES, finished_runs, looks, whisker
from specbench.figures.rows import row_panels
from specbench.figures.style import INK, NOISY_REMARK, Look, from_zero, mark_noisy, note, panels, remarks, styled
from specbench.results.frozen import Frozen

_NUMBERS = ["walltime_speedup", "ci_low", "ci_high", "num_measured", "noisy"]


def select(frozen: Frozen) -> pd.DataFrame:
    """One row a run that was timed against AR."""
    runs = finished_runs(frozen, "walltime_speedup")
    runs = runs[runs["method"] != "ar"] if (runs["method"] != "ar").any() else runs  # AR over AR says nothing
    return runs.assign(noisy=runs["noisy"].eq(True))[[*NAMES, *_NUMBERS]].reset_index(drop=True)


@styled
def build(frame: pd.DataFrame) -> Figure:
    """One panel a task, one bar a method, from zero; the line at 1 is AR."""
    styles, tasks = looks(frame), panels(frame)
    figure, axes = row_panels(tasks, [look.name for look in styles.values()], "speedup over AR")
    for axis, task in zip(axes, tasks, strict=True):
        _bars(axis, frame[frame["panel"] == task], styles)
        axis.xaxis.set_major_locator(MaxNLocator(5))
    from_zero(axes, "x")
    few = ("bars without whiskers: fewer than 8 conversations", frame["ci_low"].isna().any())
    said = remarks(few, (NOISY_REMARK, frame["noisy"].any()))
    if said:
        note(figure, said)
    return figure


def _bars(axis: Axes, rows: pd.DataFrame, styles: dict[str, Look]) -> None:
    places = {label: place for place, label in enumerate(styles)}
    for row in rows.to_dict("records"):
        speedup, error = row["walltime_speedup"], whisker(row, "walltime_speedup")
        axis.barh(places[row["label"]], speedup, height=0.75, **styles[row["label"]].of_bar())
        if error is not None:
            axis.errorbar(speedup, places[row["label"]], xerr=error, color=INK, capsize=1.5, linewidth=0.8)
        if row["noisy"]:
            mark_noisy(axis, speedup if error is None else row["ci_high"], places[row["label"]])
    axis.axvline(1.0, color=INK, linewidth=0.8, linestyle="--")
