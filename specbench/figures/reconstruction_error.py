"""Error of every converted attention layer, before and after functional reconstruction."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specbench.figures.base import NotEnoughData
from specbench.figures.style import grid, legend, styled
from specbench.results.frozen import Frozen

_KEYS = ["pair", "converter", "budget", "variant", "options", "tuning"]


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
    """One panel a conversion; relative errors on a logarithmic scale shared by all."""
    groups = list(frame.groupby(_KEYS, sort=True))
    figure, axes = grid(len(groups), most=3)
    for axis, (key, rows) in zip(axes, groups, strict=True):
        rows = rows.sort_values("layer")
        axis.plot(rows["layer"], rows["error_before"], color="#D55E00", marker="o", label="converted")
        axis.plot(rows["layer"], rows["error_after"], "--", color="#0072B2", marker="^", label="after reconstruction")
        pair, converter, budget, variant, *_ = key
        axis.set(title=f"{pair}\n{converter}, {variant}, budget {budget}", xlabel="layer", yscale="log")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_ylabel("relative squared error")
    legend(figure, axes)
    return figure
