"""Acceptance of converted drafts after reconstruction against before: one line a matched cell, improved to worse."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.analysis.matched_cells import CELL, IMPROVED, UNCHANGED, WORSE, compare, differing, main_tuning
from specbench.analysis.table_text import joined
from specbench.figures.base import NotEnoughData
from specbench.figures.rows import row_panels
from specbench.figures.style import BETTER, INK, SAME, WORSE_LOOK, Look, legend, styled
from specbench.results.frozen import Frozen

# (after, before): what is compared, as results/schema.py names the variants of a cell.
COMPARISONS = {("functional", "none"): "functional − as converted", ("functional", "kv"): "functional − kv"}
_UNJUDGED = Look("too few prompts", "#BBBBBB", "D")
_LOOKS = {IMPROVED: BETTER, UNCHANGED: SAME, WORSE: WORSE_LOOK}
_NUMBERS = ["prompts", "clusters", "before", "after", "delta_pp", "low_pp", "high_pp", "p", "q", "published", "label"]


def select(frozen: Frozen) -> pd.DataFrame:
    """One row a comparison and cell: difference in percentage points, its interval, q-value and label."""
    cells = main_tuning(frozen.cells)
    if cells.empty:
        raise NotEnoughData("no matched cells: the experiment mla_matched writes them")
    runs = cells.groupby(CELL)["run_id"].unique().map(" ".join).rename("run_id").reset_index()
    frames = []
    for (after, before), title in COMPARISONS.items():
        found = compare(cells, after, before).cells
        frames.append(found.merge(runs, on=CELL).assign(comparison=title))
    frame = pd.concat([found for found in frames if len(found)], ignore_index=True) if any(map(len, frames)) else None
    if frame is None:
        raise NotEnoughData("no cell has both the functional variant and one to compare it with (none or kv)")
    return frame[["run_id", "comparison", *CELL, "tuning", *_NUMBERS]].assign(cell=_names(frame))


def _names(frame: pd.DataFrame) -> list[str]:
    """What tells the cells apart: keys that are the same everywhere are left out."""
    texts = frame[CELL].astype(str)
    texts["budget"] = frame["budget"].map("{:.0%}".format)
    texts["options"], texts["tuning"] = differing(frame["options"]), differing(frame["tuning"])
    keys = [key for key in [*CELL, "tuning"] if texts[key].nunique() > 1] or ["converter", "task"]
    return joined(texts[keys])


@styled
def build(frame: pd.DataFrame) -> Figure:
    """One panel a comparison, the same cells and axis in all."""
    comparisons = list(frame["comparison"].unique())
    cells = list(dict.fromkeys(frame.sort_values(CELL)["cell"]))
    figure, axes = row_panels(comparisons, cells, "difference in acceptance (points)", room=0.85, lines=True)
    for axis, comparison in zip(axes, comparisons, strict=True):
        _forest(axis, frame[frame["comparison"] == comparison], cells)
    legend(figure, axes, remark="percentage points; judged by 95 % intervals over prompts and at least 0.5 points")
    return figure


def _forest(axis: Axes, rows: pd.DataFrame, cells: list[str]) -> None:
    for look in [look for label, look in _LOOKS.items() if (rows["label"] == label).any()]:
        axis.plot([], [], label=look.name, **look.of_point())  # in this order in the legend
    axis.axvline(0.0, color=INK, linewidth=0.8, linestyle="--")
    for row in rows.to_dict("records"):
        look = _LOOKS.get(row["label"], _UNJUDGED)
        where = cells.index(row["cell"])
        if pd.notna(row["low_pp"]):
            axis.hlines(where, row["low_pp"], row["high_pp"], color=look.color, linewidth=1.2)
        axis.plot(row["delta_pp"], where, label=look.name, **look.of_point())
