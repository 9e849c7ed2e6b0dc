"""Acceptance of converted drafts by the size of their cache, as converted and after functional reconstruction."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.analysis.matched_cells import CELL, differing, main_tuning, rates
from specbench.analysis.table_text import joined
from specbench.figures.base import NotEnoughData
from specbench.figures.style import CONVERTERS, INK, Look, family, from_zero, grid, legend, panels, styled
from specbench.results.frozen import Frozen

LEAST = 2  # sizes that make a line
_ORIGINAL, _CONVERTED, _TUNED = "original", "none", "functional"


def select(frozen: Frozen) -> pd.DataFrame:
    """One row an arm of a cell: budget (share of the original's cache) and acceptance in percent, with its line."""
    cells = main_tuning(frozen.cells)
    cells = cells[cells["variant"].isin([_ORIGINAL, _CONVERTED, _TUNED])]
    converted = cells[cells["variant"] != _ORIGINAL]
    if converted.empty:
        raise NotEnoughData("no matched cells: the experiment mla_budgets writes them")
    if converted.groupby(["pair", "converter"])["budget"].nunique().max() < LEAST:
        raise NotEnoughData("no draft was converted to two sizes of the cache: the experiment mla_budgets does")
    keys = [*CELL, "variant", "tuning"]
    frame = rates(cells).merge(cells.drop_duplicates(keys)[[*keys, "run_id"]], on=keys)
    frame = frame.assign(acceptance_percent=100 * frame["acceptance_rate"])
    return _named(frame)[["run_id", "panel", "line", *keys, "prompts", "acceptance_percent"]]


def _named(frame: pd.DataFrame) -> pd.DataFrame:
    """With `panel` (task, and pair and setting where they differ) and `line` (converter and what else differs)."""
    others = [name for name in ("pair", "setting", "acceptance") if frame[name].nunique() > 1]
    lines = frame[["converter"]].assign(options=differing(frame["options"]), tuning=differing(frame["tuning"]))
    return frame.assign(panel=joined(frame[["task", *others]]), line=joined(lines))


@styled
def build(frame: pd.DataFrame) -> Figure:
    """One panel a task; a dashed and a full line a converter, and the original draft's acceptance across."""
    shown = panels(frame)
    looks = _looks(frame[frame["variant"] != _ORIGINAL])
    figure, axes = grid(len(shown), share_y=False)
    for axis, panel in zip(axes, shown, strict=True):
        _panel(axis, frame[frame["panel"] == panel], looks)
        axis.set(title=panel, xlabel="cache (% of original)", xlim=(0, 105))
        from_zero([axis], "y")
    axes[0].set_ylabel("acceptance (%)")
    legend(figure, axes, remark="dashed: as converted; full line: after functional reconstruction")
    return figure


def _looks(converted: pd.DataFrame) -> dict[str, Look]:
    """One a line: the converter's, lighter where several lines are of one converter."""
    lines = converted.groupby("converter")["line"].unique()
    return {
        line: look for name, own in lines.items() for line, look in family(CONVERTERS[str(name)], sorted(own)).items()
    }


def _panel(axis: Axes, rows: pd.DataFrame, looks: Mapping[str, Look]) -> None:
    for value in rows.loc[rows["variant"] == _ORIGINAL, "acceptance_percent"].unique():
        axis.axhline(value, color=INK, linewidth=0.8, linestyle=":", label="original draft")
    for line, look in looks.items():
        own = rows[rows["line"] == line].sort_values("budget")
        for variant, dash in ((_CONVERTED, "--"), (_TUNED, "-")):
            part = own[own["variant"] == variant]
            label = look.name if variant == _TUNED else None
            axis.plot(
                100 * part["budget"], part["acceptance_percent"], **look.of_line() | {"linestyle": dash}, label=label
            )
