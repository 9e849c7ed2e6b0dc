"""The speed over plain decoding that a search predicted of its skip set, against what drafting with it gave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.analysis.progress import pooled_prediction, predictions
from specbench.figures.base import RunRows, described, each_run, finished_runs, looks, together
from specbench.figures.style import INK, Look, grid, legend, panels, styled
from specbench.results.frozen import Frozen

LEAST = 8  # tokens that a drawn speed rests on


def select(frozen: Frozen) -> pd.DataFrame:
    """One row a skip set (part=set) of LEAST tokens or more whose search predicted a speed, and one a run.

    A run's row (part=run) pools its sets.
    """
    frames = [_rates(rows) for rows in each_run(frozen, finished_runs(frozen, "num_choices"))]
    return together(frames, f"no skip set with a predicted speed (knapspec) that was used for {LEAST} tokens or more")


def _rates(rows: RunRows) -> pd.DataFrame:
    found = predictions(rows.samples, rows.steps, rows.choices)
    found = found[found["num_tokens"] >= LEAST]
    if found.empty:
        return found
    parts = [found.assign(part="set"), pd.DataFrame([pooled_prediction(found)]).assign(part="run")]
    return described(rows.run, pd.concat(parts, ignore_index=True))


@styled
def build(frame: pd.DataFrame) -> Figure:
    """One panel a task; a faint point a set, a full one a run; on the diagonal the prediction came true."""
    styles, tasks = looks(frame), panels(frame)
    figure, axes = grid(len(tasks), height=2.6)  # panels are square, below three lines of title
    most = 1.08 * float(frame[["predicted", "measured"]].astype(float).max().max())
    for axis, task in zip(axes, tasks, strict=True):
        rows = frame[frame["panel"] == task]
        axis.plot([0, most], [0, most], color=INK, linewidth=0.7, linestyle=":", label="as predicted")
        for label, look in styles.items():
            _points(axis, rows[rows["label"] == label], look, label)
        axis.set(
            title="\n".join([task, *_correlations(rows)]),
            xlabel="predicted speedup",
            xlim=(0, most),
            ylim=(0, most),
            aspect="equal",
        )
    axes[0].set_ylabel("measured speedup over AR")
    legend(
        figure,
        axes,
        remark=f"faint: a skip set with {LEAST} tokens or more; full: a run; time of the searches left out",
    )
    return figure


def _points(axis: Axes, rows: pd.DataFrame, look: Look, label: str) -> None:
    sets, runs = rows[rows["part"] == "set"], rows[rows["part"] == "run"]
    axis.plot(sets["predicted"].astype(float), sets["measured"], alpha=0.35, markersize=2.5, **look.of_point())
    if len(runs):
        outline: dict[str, Any] = {"markeredgecolor": INK, "markeredgewidth": 0.5, "markersize": 6}
        axis.plot(runs["predicted"].astype(float), runs["measured"], label=label, **look.of_point(), **outline)


def _correlations(rows: pd.DataFrame) -> list[str]:
    """Pearson's r over sets, and over runs where there are several."""
    lines = []
    for part in ("set", "run"):
        own = rows[rows["part"] == part]
        x, y = (own[name].to_numpy(dtype=float) for name in ("predicted", "measured"))
        if len(own) > 2 and x.std() > 0 and y.std() > 0:
            lines.append(f"r = {np.corrcoef(x, y)[0, 1]:.2f} ({len(own)} {part}s)")
    return lines
