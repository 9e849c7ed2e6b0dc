"""What led ConfLayers to a choice: confidence, threshold and window of every layer."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specbench.analysis.rows import own_steps
from specbench.analysis.skipping import expanded
from specbench.figures.base import RunRows, described, each_run, finished_runs, together
from specbench.figures.style import from_zero, grid, legend, styled
from specbench.results.frozen import Frozen

MOST = 4  # choices side by side
_VALUES = ("z", "thresholds", "windows", "selected_layers", "lambda")


def select(frozen: Frozen) -> pd.DataFrame:
    """One row a layer 1..L-2 of a run's last choice: standardised confidence z, threshold, window, selected."""
    frames = [_last_choice(rows) for rows in each_run(frozen, finished_runs(frozen, "num_choices"))]
    frames = [frame for frame in frames if not frame.empty][:MOST]
    return together(frames, "no choice with confidences: method=confl records them once its search has run")


def _last_choice(rows: RunRows) -> pd.DataFrame:
    own = own_steps(rows.samples, rows.choices[rows.choices["kind"] == "skip_set"])
    made = expanded(own, _VALUES).dropna(subset="z")
    if made.empty:
        return pd.DataFrame()
    last = made.iloc[-1]
    layers = range(1, len(last["z"]) + 1)
    values = {
        "sample_id": last["sample_id"],
        "step": last["step"],
        "lambda": last["lambda"],
        "layer": layers,
        "z": last["z"],
        "threshold": last["thresholds"],
        "window": last["windows"],
        "selected": [layer in last["selected_layers"] for layer in layers],
    }
    return described(rows.run, pd.DataFrame(values))


@styled
def build(frame: pd.DataFrame) -> Figure:
    """Two panels a choice, one above the other: z against its threshold, and how many neighbours the window holds."""
    ids = list(frame["run_id"].unique())
    figure, axes = grid(2 * len(ids), height=1.7, most=len(ids), share_y=False)
    for number, run_id in enumerate(ids):
        rows = frame[frame["run_id"] == run_id]
        _confidences(axes[number], rows)
        _windows(axes[len(ids) + number], rows)
        first = rows.iloc[0]
        where = f"{first['panel']}, step {first['step']}, λ\u00a0=\u00a0{first['lambda']:.2f}"
        axes[number].set_title("\n".join([*first["label"].split(", "), where]))
        axes[number].set_ylim(*_limits(frame))
    axes[0].set_ylabel("standardised confidence")
    axes[len(ids)].set_ylabel("window (layers)")
    from_zero(axes[len(ids) :], "y")
    legend(figure, axes)
    return figure


def _limits(frame: pd.DataFrame) -> tuple[float, float]:
    """The same for all choices, with a little room."""
    values = frame[["z", "threshold"]].to_numpy(dtype=float)
    room = 0.06 * (values.max() - values.min())
    return float(values.min() - room), float(values.max() + room)


def _confidences(axis: Axes, rows: pd.DataFrame) -> None:
    for layer in rows.loc[rows["selected"], "layer"]:
        axis.axvspan(layer - 0.5, layer + 0.5, color="#E8D5DE", linewidth=0, label="left out")
    axis.plot(rows["layer"], rows["z"], color="#0072B2", marker="o", label="confidence z")
    axis.plot(rows["layer"], rows["threshold"], color="#D55E00", marker="^", linestyle="--", label="threshold")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def _windows(axis: Axes, rows: pd.DataFrame) -> None:
    axis.bar(rows["layer"], rows["window"], width=0.8, facecolor="#BBBBBB", edgecolor="#222222", linewidth=0.4)
    axis.set(xlabel="layer")
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
