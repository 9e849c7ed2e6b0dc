"""Error of every converted attention layer, as converted and after each way of tuning it."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specbench.analysis.matched_cells import differing
from specbench.analysis.table_text import joined
from specbench.figures.base import NotEnoughData
from specbench.figures.style import Look, family, grid, legend, styled
from specbench.results.frozen import Frozen

_CELL = ["pair", "converter", "budget", "options"]
_KEYS = [*_CELL, "variant", "tuning"]
_MOST = 3  # panels in a row
_CONVERTED = Look("as converted", "#D55E00", "o", "-")
_TUNED = {"functional": Look("functional", "#0072B2", "^", "--"), "kv": Look("kv", "#555555", "x", ":")}


def select(frozen: Frozen) -> pd.DataFrame:
    """One row a conversion and layer with its errors before and after."""
    frame = frozen.reconstruction
    if frame.empty:
        raise NotEnoughData("no reconstruction rows: the experiment mla_matched writes them")
    frame = frame.drop_duplicates([*_KEYS, "layer"])  # runs on several tasks share a draft
    tuned = frame["variant"] != "none"  # of a draft as converted both errors are one
    frame = frame[tuned] if tuned.any() else frame
    return frame[["run_id", *_KEYS, "layer", "error_before", "error_after", "seconds"]].reset_index(drop=True)


@styled
def build(frame: pd.DataFrame) -> Figure:
    """One panel a conversion, one line a way of tuning it; relative errors on a logarithmic scale shared by all."""
    frame = frame.assign(panel=_panels(frame), line=_lines(frame)).sort_values([*_KEYS, "layer"])
    looks = _looks(frame)
    panels = list(frame["panel"].unique())
    figure, axes = grid(len(panels), most=_MOST)
    for axis, panel in zip(axes, panels, strict=True):
        _panel(axis, frame[frame["panel"] == panel], looks)
        axis.set(title=panel, xlabel="layer", yscale="log")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    for first in axes[::_MOST]:
        first.set_ylabel("relative squared error")
    legend(figure, axes)
    return figure


def _panel(axis: Axes, rows: pd.DataFrame, looks: dict[str, Look]) -> None:
    once = rows.drop_duplicates("layer")  # however it is tuned, a layer begins as converted
    axis.plot(once["layer"], once["error_before"], label=_CONVERTED.name, **_CONVERTED.of_line())
    for line, look in looks.items():
        own = rows[rows["line"] == line]
        axis.plot(own["layer"], own["error_after"], label=look.name, **look.of_line())


def _panels(frame: pd.DataFrame) -> list[str]:
    """Converter and budget, and the pair and what else differs."""
    pair = frame["pair"] if frame["pair"].nunique() > 1 else ""
    texts = {"converter": frame["converter"], "budget": frame["budget"].map("{:.0%} of the cache".format)}
    return joined(pd.DataFrame(texts).assign(pair=pair, options=differing(frame["options"])))


def _lines(frame: pd.DataFrame) -> list[str]:
    """What was tuned to, and how where that differs."""
    return joined(frame[["variant"]].assign(tuning=differing(frame["tuning"])))


def _looks(frame: pd.DataFrame) -> dict[str, Look]:
    """One a line, lighter where a variant was tuned in several ways."""
    lines = frame[frame["variant"].isin(_TUNED)].groupby("variant")["line"].unique()
    return {line: look for name, own in lines.items() for line, look in family(_TUNED[str(name)], list(own)).items()}
