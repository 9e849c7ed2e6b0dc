"""Histogram of draft lengths, beside the lengths that would have been right."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from specbench.analysis.lengths import drafted_lengths, oracle_lengths
from specbench.analysis.rows import own_steps
from specbench.figures.base import NotEnoughData, RunRows, described, each_run, finished_runs, looks, together
from specbench.figures.style import INK, Look, grid, legend, styled
from specbench.results.frozen import Frozen


def select(frozen: Frozen) -> pd.DataFrame:
    """One row a run, source (policy | oracle) and length: share of steps. The task with the most policies is taken.

    The oracle drafts just what will be accepted, at most as much as the longest draft of the run; it is missing for
    trees, whose steps cannot be replayed.
    """
    runs = finished_runs(frozen, "acceptance_rate")
    task = runs["panel"].value_counts(sort=True).sort_index(kind="stable").idxmax()
    frames = [_histograms(rows) for rows in each_run(frozen, runs[runs["panel"] == task])]
    return together(frames, "no steps that drafted a chain")


def _histograms(rows: RunRows) -> pd.DataFrame:
    steps = own_steps(rows.samples, rows.steps)
    drafted = drafted_lengths(steps)
    if drafted.empty or drafted["length"].max() == 0:
        return pd.DataFrame()
    parts = {"policy": drafted, "oracle": oracle_lengths(steps, int(drafted["length"].max()))}
    shares = [
        part.assign(source=source, share=part["num_steps"] / part["num_steps"].sum())
        for source, part in parts.items()
        if part is not None
    ]
    return described(rows.run, pd.concat(shares, ignore_index=True))


@styled
def build(frame: pd.DataFrame) -> Figure:
    """One panel a policy, the same axes for all."""
    if frame["panel"].nunique() != 1:
        raise NotEnoughData("draft lengths are drawn for one task at a time")
    styles = looks(frame)
    figure, axes = grid(len(styles), height=1.5)
    for axis, (label, look) in zip(axes, styles.items(), strict=True):
        _histogram(axis, frame[frame["label"] == label], look)
        axis.set_title(label)
        axis.set_xlabel("tokens drafted in a step")
    for axis in axes[:: min(len(axes), 4)]:
        axis.set_ylabel("share of steps")
    axes[0].bar(0, 0, facecolor="#888888", edgecolor=INK, linewidth=0.5, label="drafted")
    legend(
        figure,
        axes,
        remark=f"{frame['panel'].iloc[0]}; the oracle drafts just what is accepted, no more than the run's longest",
    )
    return figure


def _histogram(axis: Axes, rows: pd.DataFrame, look: Look) -> None:
    policy, oracle = rows[rows["source"] == "policy"], rows[rows["source"] == "oracle"]
    axis.bar(policy["length"], policy["share"], width=0.8, **look.of_bar())
    if len(oracle):
        every = oracle.set_index("length")["share"].reindex(range(int(rows["length"].max()) + 1), fill_value=0.0)
        edges = [length - 0.5 for length in range(len(every) + 1)]
        axis.stairs(every, edges, color=INK, linewidth=1.0, label="right length (oracle)")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
