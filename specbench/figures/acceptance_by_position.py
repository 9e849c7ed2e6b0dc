"""How often a drafted token is accepted, by its place in the draft."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specbench.figures.base import described, finished_runs, looks, together
from specbench.figures.style import grid, legend, panels, styled
from specbench.results.frozen import Frozen

LEAST = 10  # drafted tokens that a drawn share rests on


def select(frozen: Frozen) -> pd.DataFrame:
    """One row a run and place (1 = first drafted token): accepted / drafted there, and how many were drafted."""
    runs = finished_runs(frozen, "acceptance_by_position")
    return together([_places(run) for run in runs.to_dict("records")], f"no place with {LEAST} drafted tokens or more")


def _places(run: dict[Any, Any]) -> pd.DataFrame:
    shares, counts = list(run["acceptance_by_position"]), list(run["drafted_by_position"])
    rows = pd.DataFrame({"position": range(1, len(shares) + 1), "acceptance": shares, "num_drafted": counts})
    return described(run, rows[rows["num_drafted"] >= LEAST])


@styled
def build(frame: pd.DataFrame) -> Figure:
    """One panel a task, one line a method."""
    styles, tasks = looks(frame), panels(frame)
    figure, axes = grid(len(tasks))
    for axis, task in zip(axes, tasks, strict=True):
        rows = frame[frame["panel"] == task]
        for label, look in styles.items():
            own = rows[rows["label"] == label]
            if len(own):
                axis.plot(own["position"], own["acceptance"], label=label, **look.of_line())
        axis.set(title=task, xlabel="place in the draft", ylim=(0.0, 1.03))
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_ylabel("share accepted")
    legend(
        figure, axes, remark=f"a place counts as accepted when all before it were; shown from {LEAST} drafted tokens on"
    )
    return figure
