"""Which sublayers are left out of the draft, over the verify steps of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specbench.analysis.progress import skip_timeline
from specbench.figures.base import NotEnoughData, RunRows, described, each_run, finished_runs, named, together
from specbench.figures.style import FAINT, INK, grid, legend, styled
from specbench.results.frozen import Frozen
from specbench.results.summary import load_choices, load_runs, load_samples, load_steps

MOST_RUNS = 6  # panels of one figure; more would not be legible
_KEPT, _SKIPPED = "#F2F2F2", "#882255"


def select(frozen: Frozen) -> pd.DataFrame:
    """One row a skip set and the steps it stood for, of at most MOST_RUNS runs: of every method its most changeful."""
    runs = finished_runs(frozen, "num_choices")
    frames = [run_frame(rows) for rows in each_run(frozen, runs) if not rows.choices.empty]
    frames = [frame for frame in frames if frame["sublayers"].notna().any()]
    return together(_various(frames)[:MOST_RUNS], "no run of a method that chooses layers (knapspec, confl, ...)")


def _various(frames: list[pd.DataFrame]) -> list[pd.DataFrame]:
    """The run with the most different sets of every label first, then the second ones."""
    found = sorted(frames, key=lambda frame: -frame["sublayers"].astype(str).nunique())
    labels = pd.Series([frame["label"].iloc[0] for frame in found], dtype=object)
    rank = labels.groupby(labels).cumcount().sort_values(kind="stable")
    return [found[place] for place in rank.index]


def run_frame(rows: RunRows) -> pd.DataFrame:
    """The rows of one run as `build` draws them: sublayers (None = no draft) from first_step to last_step.

    `answers` are the steps at which answers begin.
    """
    timeline = skip_timeline(rows.samples, rows.steps, rows.choices)
    answers = pd.Series([list(timeline.answers)] * len(timeline.sets), dtype=object)
    return described(rows.run, timeline.sets.assign(num_steps=timeline.num_steps, answers=answers))


def folder_frame(run_dir: Path) -> pd.DataFrame:
    """The same of one run folder; NotEnoughData where its method chooses no layers."""
    choices = load_choices(run_dir)
    if choices.empty:
        raise NotEnoughData(f"{run_dir.name} chose no layers")
    run = {str(key): value for key, value in named(load_runs(run_dir)).iloc[0].items()}
    return run_frame(RunRows(run, load_samples(run_dir), load_steps(run_dir), choices))


@styled
def build(frame: pd.DataFrame) -> Figure:
    """One panel a run: sublayers from below, attention (even) and MLP (odd) in turns; ticks above: a new answer."""
    ids = list(frame["run_id"].unique())
    count = 1 + max((max(used, default=0) for used in frame["sublayers"].dropna()), default=0)
    figure, axes = grid(len(ids), height=2.4, most=2, share_x=False, share_y=False)
    for axis, run_id in zip(axes, ids, strict=True):
        rows = frame[frame["run_id"] == run_id]
        _heat(axis, rows, 2 * ((count + 1) // 2))
        axis.set_title(f"{rows['label'].iloc[0]}: {rows['panel'].iloc[0]}", pad=8)
        axis.set(xlabel="verify step of the run", ylabel="sublayer (2l attention, 2l+1 MLP)")
    for name, color, hatch in (("left out", _SKIPPED, ""), ("in the draft", _KEPT, ""), ("no draft", FAINT, "//")):
        axes[0].fill_between([], [], facecolor=color, edgecolor=INK, linewidth=0.5, hatch=hatch, label=name)
    remark = "ticks above: a new answer begins; sublayers above the highest one ever left out are not shown"
    legend(figure, axes, remark=remark)
    return figure


def _heat(axis: Axes, rows: pd.DataFrame, num_sublayers: int) -> None:
    edges = [*rows["first_step"].astype(int), int(rows["last_step"].iloc[-1])]
    skipped = np.zeros((num_sublayers, len(rows)))
    for column, row in enumerate(rows.to_dict("records")):
        if row["sublayers"] is None:
            axis.axvspan(row["first_step"], row["last_step"], facecolor=FAINT, hatch="//", edgecolor="white", zorder=2)
        else:
            skipped[list(row["sublayers"]), column] = 1.0
    colors = ListedColormap([_KEPT, _SKIPPED])
    axis.pcolormesh(edges, np.arange(num_sublayers + 1) - 0.5, skipped, cmap=colors, vmin=0, vmax=1, rasterized=True)
    top = num_sublayers - 0.5
    for answer in rows["answers"].iloc[0]:
        axis.plot([answer, answer], [top, top + 0.025 * num_sublayers], color=INK, linewidth=0.6, clip_on=False)
    axis.set(xlim=(0, int(rows["num_steps"].iloc[0])), ylim=(-0.5, top))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(visible=False)
