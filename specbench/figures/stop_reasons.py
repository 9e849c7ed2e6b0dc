"""Why drafting ended, by policy."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from specbench.analysis.lengths import stop_reasons
from specbench.analysis.rows import own_steps
from specbench.figures.base import RunRows, described, each_run, finished_runs, looks, together
from specbench.figures.style import INK, grid, legend, panels, styled
from specbench.results.frozen import Frozen

_KNOWN = {
    "rule": ("the stop rule", "#0072B2", ""),
    "cap": ("the policy's cap", "#E69F00", "///"),
    "planned": ("the planned length", "#56B4E9", "\\\\\\"),
    "budget": ("end of the answer's budget", "#BBBBBB", "..."),
    "stop_id": ("a stop token was drafted", "#009E73", "xxx"),
}
_OTHER = ("another reason", "#882255", "---")


def select(frozen: Frozen) -> pd.DataFrame:
    """One row a run and reason: share of the steps that say why."""
    runs = finished_runs(frozen, "acceptance_rate")
    return together([_reasons(rows) for rows in each_run(frozen, runs)], "no steps that say why drafting ended")


def _reasons(rows: RunRows) -> pd.DataFrame:
    counts = stop_reasons(own_steps(rows.samples, rows.steps))
    return described(rows.run, counts.assign(share=counts["num_steps"] / counts["num_steps"].sum()))


@styled
def build(frame: pd.DataFrame) -> Figure:
    """One panel a task, one bar of 100 % a policy."""
    styles, tasks = looks(frame), panels(frame)
    figure, axes = grid(len(tasks), height=0.75 + 0.17 * len(styles))
    places = {label: place for place, label in enumerate(styles)}
    reasons = [*(name for name in _KNOWN if name in set(frame["stop_reason"])), "other"]
    grouped = frame.assign(reason=frame["stop_reason"].where(frame["stop_reason"].isin(list(_KNOWN)), "other"))
    table = grouped.pivot_table(index=["panel", "label"], columns="reason", values="share", aggfunc="sum", fill_value=0)
    for axis, task in zip(axes, tasks, strict=True):
        own = table.loc[task]
        left = pd.Series(0.0, index=own.index)
        for reason in (reason for reason in reasons if reason in own):
            name, color, hatch = _KNOWN.get(reason, _OTHER)
            y = [places[label] for label in own.index]
            look: dict[str, Any] = {"facecolor": color, "hatch": hatch, "edgecolor": INK, "linewidth": 0.5}
            axis.barh(y, own[reason], left=left, height=0.75, label=name, **look)
            left = left + own[reason]
        axis.set_yticks(list(places.values()), [styles[label].name for label in places])
        axis.set(title=task, xlabel="share of steps", xlim=(0, 1), ylim=(len(places) - 0.4, -0.6))
        axis.xaxis.set_major_formatter(PercentFormatter(1.0))
        axis.grid(visible=False, axis="y")
    legend(figure, axes)
    return figure
