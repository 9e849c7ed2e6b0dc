"""How many tokens were accepted of drafts of each length."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle
from matplotlib.ticker import MaxNLocator

from specbench.analysis.lengths import accepted_by_drafted
from specbench.analysis.rows import own_steps
from specbench.figures.base import RunRows, described, each_run, finished_runs, looks, together
from specbench.figures.style import INK, from_zero, grid, legend, panels, styled
from specbench.results.frozen import Frozen

LEAST = 10  # steps that a drawn mean rests on


def select(frozen: Frozen) -> pd.DataFrame:
    """One row a run and draft length: mean accepted tokens, and number of steps."""
    runs = finished_runs(frozen, "acceptance_rate")
    frames = [_lengths(rows) for rows in each_run(frozen, runs)]
    return together(frames, "no steps with a drafted chain: they are in steps.parquet of methods that draft")


def _lengths(rows: RunRows) -> pd.DataFrame:
    table = accepted_by_drafted(own_steps(rows.samples, rows.steps))
    return described(rows.run, table[table["num_steps"] >= LEAST])


@styled
def build(frame: pd.DataFrame) -> Figure:
    """One panel a task; the area of a mark is the share of the method's steps; on the diagonal all is accepted."""
    styles, tasks = looks(frame), panels(frame)
    figure, axes = grid(len(tasks))
    longest = int(frame["drafted"].max())
    for axis, task in zip(axes, tasks, strict=True):
        axis.plot([0, longest], [0, longest], color=INK, linewidth=0.7, linestyle=":", label="all accepted")
        for label, look in styles.items():
            own = frame[(frame["panel"] == task) & (frame["label"] == label)]
            if len(own):
                share = own["num_steps"].to_numpy(dtype=float) / own["num_steps"].sum()
                x, y = own["drafted"].astype(float), own["mean_accepted"]
                axis.plot(x, y, color=look.color, linestyle=look.line, linewidth=0.8)
                mark = MarkerStyle(look.marker, fillstyle=look.fill)
                axis.scatter(x, y, s=4 + 40 * share, color=look.color, marker=mark, alpha=0.8, linewidths=0.8)
                axis.plot(np.nan, np.nan, label=label, **look.of_line())
        axis.set(title=task, xlabel="drafted tokens", xlim=(0, longest + 0.7))
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_ylabel("mean accepted tokens")
    from_zero(axes, "y")
    legend(
        figure,
        axes,
        remark=f"area of a mark: share of the method's steps with this draft length; from {LEAST} steps on",
    )
    return figure
