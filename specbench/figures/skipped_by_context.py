"""How many attention and MLP sublayers searches leave out, by length of context."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specbench.analysis.rows import own_steps
from specbench.analysis.skipping import STANDING, expanded
from specbench.figures.base import NotEnoughData, RunRows, described, each_run, finished_runs, looks, together
from specbench.figures.style import ATTENTION, MLP, from_zero, grid, legend, styled
from specbench.results.frozen import Frozen

_COUNTS = {"num_attention_skipped": ATTENTION, "num_mlp_skipped": MLP}


def select(frozen: Frozen) -> pd.DataFrame:
    """One row a skip set that a search installed: context length and sublayers left out, by kind."""
    runs = finished_runs(frozen, "num_choices")
    frame = together([_sets(rows) for rows in each_run(frozen, runs)], "no search installed a skip set")
    if frame["context_length"].nunique() < 2:
        raise NotEnoughData("all skip sets were chosen at the same context length")
    return frame


def _sets(rows: RunRows) -> pd.DataFrame:
    own = own_steps(rows.samples, rows.choices[rows.choices["kind"] == "skip_set"])
    made = expanded(own, ["reason", *_COUNTS])
    made = made[~made["reason"].isin(STANDING)].dropna(subset=list(_COUNTS))
    columns = ["sample_id", "step", "context_length", *_COUNTS]
    return described(rows.run, made[columns].astype(dict.fromkeys(_COUNTS, int)))


@styled
def build(frame: pd.DataFrame) -> Figure:
    """One panel a method: a point a set, and the median over quarters of the contexts."""
    labels = list(looks(frame))
    figure, axes = grid(len(labels))
    for axis, label in zip(axes, labels, strict=True):
        own = frame[frame["label"] == label]
        context = own["context_length"].astype(float)
        for column, look in _COUNTS.items():
            axis.plot(context, own[column], alpha=0.35, **look.of_point())
            parts = pd.qcut(context, 4, duplicates="drop", labels=False)
            if parts.nunique() > 1:
                line = {**look.of_line(), "marker": None}
                axis.plot(context.groupby(parts).median(), own[column].groupby(parts).median(), **line)
            axis.plot([], [], label=look.name, **look.of_line())
        axis.set(title=label, xlabel="context (tokens)", ylim=(-0.5, 0.5 + frame[list(_COUNTS)].max().max()))
        axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_ylabel("sublayers left out")
    from_zero(axes, "x")
    legend(
        figure, axes, remark="one point a skip set chosen while decoding; lines: medians over quarters of the contexts"
    )
    return figure
