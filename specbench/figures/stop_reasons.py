"""Why drafting ended, by policy."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from specbench.analysis.lengths import stop_reasons
from specbench.analysis.rows import own_steps
from specbench.figures.base import RunRows, described, each_run, finished_runs, looks, together
from specbench.figures.rows import row_panels, stack
from specbench.figures.style import Look, legend, panels, styled
from specbench.results.frozen import Frozen

_KNOWN = {
    "rule": Look("the stop rule", "#0072B2", "o"),
    "cap": Look("the policy's cap", "#E69F00", "s", hatch="///"),
    "planned": Look("the planned length", "#56B4E9", "^", hatch="\\\\\\"),
    "budget": Look("end of the answer's budget", "#BBBBBB", "D", hatch="..."),
    "stop_id": Look("a stop token was drafted", "#009E73", "v", hatch="xxx"),
}
_OTHER = Look("another reason", "#882255", "P", hatch="---")


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
    figure, axes = row_panels(tasks, [look.name for look in styles.values()], "share of steps")
    reasons = [*(name for name in _KNOWN if name in set(frame["stop_reason"])), "other"]
    grouped = frame.assign(reason=frame["stop_reason"].where(frame["stop_reason"].isin(list(_KNOWN)), "other"))
    table = grouped.pivot_table(index=["panel", "label"], columns="reason", values="share", aggfunc="sum", fill_value=0)
    for axis, task in zip(axes, tasks, strict=True):
        own = table.loc[task]
        there = [reason for reason in reasons if reason in own]
        parts = ((label, own.loc[label, reason], _KNOWN.get(reason, _OTHER)) for reason in there for label in own.index)
        stack(axis, list(styles), parts)
        axis.set_xlim(0, 1)
        axis.xaxis.set_major_formatter(PercentFormatter(1.0))
    legend(figure, axes)
    return figure
