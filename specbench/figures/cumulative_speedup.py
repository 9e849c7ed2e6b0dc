"""Speedup so far, prompt after prompt, and where a search ended."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specbench.analysis.progress import cumulative_speedup, search_end
from specbench.figures.base import RunRows, described, each_run, finished_runs, looks, together
from specbench.figures.style import INK, from_zero, grid, legend, panels, styled
from specbench.results.frozen import Frozen

LEAST = 3  # prompts that make a curve


def select(frozen: Frozen) -> pd.DataFrame:
    """One row a run and prompt in the order of decoding: speedup over AR so far; `search_end` is a prompt or null."""
    runs = finished_runs(frozen, "walltime_speedup")
    frames = [_curve(rows) for rows in each_run(frozen, runs[runs["method"] != "ar"])]
    return together(frames, f"no run with {LEAST} prompts that were timed against AR")


def _curve(rows: RunRows) -> pd.DataFrame:
    found = cumulative_speedup(rows.samples)
    end = search_end(rows.samples, rows.choices) if len(rows.choices) else None
    return described(rows.run, found.assign(search_end=end) if len(found) >= LEAST else found.iloc[:0])


@styled
def build(frame: pd.DataFrame) -> Figure:
    """One panel a task, one line a method; a short vertical mark in its colour: its search ended in this prompt."""
    styles, tasks = looks(frame), panels(frame)
    figure, axes = grid(len(tasks), height=2.1, share_x=False)
    for axis, task in zip(axes, tasks, strict=True):
        rows = frame[frame["panel"] == task]
        for label, look in styles.items():
            own = rows[rows["label"] == label]
            if own.empty:
                continue
            every = max(1, len(own) // 10)
            axis.plot(own["prompt"], own["speedup"], label=label, markevery=every, **look.of_line())
            end = own["search_end"].iloc[0]
            if pd.notna(end):
                axis.axvline(end, color=look.color, linestyle=look.line, linewidth=0.7)
        axis.axhline(1.0, color=INK, linewidth=0.7, linestyle="--")
        axis.set(title=task, xlabel="prompt")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_ylabel("speedup so far")
    from_zero(axes, "y")
    remark = (
        "vertical line: the prompt in which this method's search ended" if frame["search_end"].notna().any() else ""
    )
    legend(figure, axes, remark=remark)
    return figure
