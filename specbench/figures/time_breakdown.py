"""Where the time of a token goes: drafting, verifying, adapting, and everything else."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.analysis.speed import PHASES as COLUMNS
from specbench.figures.base import described, finished_runs, looks, together
from specbench.figures.rows import row_panels, stack
from specbench.figures.style import INK, PHASES, from_zero, legend, panels, styled
from specbench.results.frozen import Frozen

_SHARES = [f"{name.removesuffix('_s')}_share" for name in COLUMNS]


def select(frozen: Frozen) -> pd.DataFrame:
    """One row a run and phase: milliseconds a token; `ar_ms` is the paired AR's whole time a token."""
    runs = finished_runs(frozen, "tpot_s", *_SHARES)
    return together([_phases(run) for run in runs.to_dict("records")], "no timed runs with phases")


def _phases(run: dict[Any, Any]) -> pd.DataFrame:
    baseline = run.get("baseline_tpot_s")
    rows = pd.DataFrame(
        {
            "phase": list(PHASES),
            "ms_per_token": [1e3 * run["tpot_s"] * run[f"{phase}_share"] for phase in PHASES],
            "ar_ms": None if baseline is None else 1e3 * float(baseline),
        }
    )
    return described(run, rows)


@styled
def build(frame: pd.DataFrame) -> Figure:
    """One panel a task, one stacked bar a method, from zero; the tick on a bar is its own AR's time a token."""
    styles, tasks = looks(frame), panels(frame)
    figure, axes = row_panels(tasks, [look.name for look in styles.values()], "ms a token")
    for axis, task in zip(axes, tasks, strict=True):
        _stacks(axis, frame[frame["panel"] == task], list(styles))
    from_zero(axes, "x")
    legend(figure, axes)
    return figure


def _stacks(axis: Axes, rows: pd.DataFrame, labels: list[str]) -> None:
    stack(axis, labels, ((row["label"], row["ms_per_token"], PHASES[row["phase"]]) for row in rows.to_dict("records")))
    for row in rows.dropna(subset="ar_ms").drop_duplicates("label").to_dict("records"):
        where = labels.index(row["label"])
        axis.plot([row["ar_ms"]] * 2, [where - 0.45, where + 0.45], color=INK, linewidth=1.6, label="its AR")
