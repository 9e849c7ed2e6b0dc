"""The latency model of this machine: timed passes, the fitted line, and what attention and MLP cost in it."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.figures.base import NotEnoughData
from specbench.figures.style import ATTENTION, INK, MLP, from_zero, grid, legend, styled
from specbench.results.frozen import Frozen

_SHOWN = ["run_id", "profile", "model", "dtype", "threads", "cpu", "noisy", "context", "attention", "mlp", "head"]
_SECONDS = ["seconds", "fitted_s", "attention_s", "mlp_s"]


def select(frozen: Frozen) -> pd.DataFrame:
    """The passes of every profile once; a profile that was taken on a quiet machine is preferred."""
    rows = frozen.profiles
    if rows.empty:
        raise NotEnoughData("no latency profile: runs of method=knapspec without method.latency measure one")
    quiet = rows[~rows["noisy"].astype(bool)]
    rows = quiet if len(quiet) else rows
    names = frozen.runs.set_index("run_id")["model"]
    rows = rows.assign(model=rows["run_id"].map(names).fillna(rows["model"]))
    first = rows.groupby("profile")["run_id"].transform("first")
    return rows[rows["run_id"] == first][[*_SHOWN, *_SECONDS]].reset_index(drop=True)


@styled
def build(frame: pd.DataFrame) -> Figure:
    """Two panels a profile: whole and partial passes over context, and one layer's attention and MLP."""
    profiles = list(frame["profile"].unique())
    figure, axes = grid(2 * len(profiles), height=2.2, most=2, share_x=False, share_y=False)
    for number, profile in enumerate(profiles):
        rows = frame[frame["profile"] == profile].sort_values("context")
        _passes(axes[2 * number], rows)
        _sublayers(axes[2 * number + 1], rows)
        first = rows.iloc[0]
        axes[2 * number].set_title(f"{first['model']}, {first['dtype']}, threads: {first['threads']}")
        axes[2 * number + 1].set_title("one layer in the fitted model")
    remark = (
        "NOISY: two passes in a row never agreed within 20 %, or others used the machine"
        if frame["noisy"].astype(bool).any()
        else ""
    )
    legend(figure, axes, columns=3, remark=remark)
    return figure


def _passes(axis: Axes, rows: pd.DataFrame) -> None:
    """Measured points beside the fit, the whole model apart from passes with parts left out."""
    layers = rows["attention"].max()
    is_whole = (rows["attention"] == layers) & (rows["mlp"] == rows["mlp"].max()) & rows["head"].astype(bool)
    whole, part = rows[is_whole], rows[~is_whole]
    axis.plot(whole["context"], 1e3 * whole["fitted_s"], color=INK, label="fit")
    axis.plot(part["context"], 1e3 * part["fitted_s"], color=INK, marker="_", markersize=9, linestyle="none")
    axis.plot(whole["context"], 1e3 * whole["seconds"], "o", color="#0072B2", label="measured, whole model")
    axis.plot(part["context"], 1e3 * part["seconds"], "^", color="#D55E00", label="measured, parts left out")
    axis.set(xlabel="context (tokens)", ylabel="one token's pass (ms)")
    from_zero([axis], "x")
    from_zero([axis], "y")


def _sublayers(axis: Axes, rows: pd.DataFrame) -> None:
    once = rows.drop_duplicates("context")
    for look, column in ((ATTENTION, "attention_s"), (MLP, "mlp_s")):
        axis.plot(once["context"], 1e6 * once[column], label=look.name, **look.of_line())
    axis.set(xlabel="context (tokens)", ylabel="one sublayer (µs)")
    from_zero([axis], "x")
    from_zero([axis], "y")
