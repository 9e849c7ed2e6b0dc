"""Whether a stop rule's chances are what they say, and what it knows at each place of a draft."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specbench.analysis.chances import auc_by_position, calibration, calibration_error, judged_tokens
from specbench.analysis.rows import own_steps
from specbench.figures.base import NAMES, NotEnoughData, RunRows, described, each_run, finished_runs, looks, together
from specbench.figures.style import INK, Look, grid, legend, styled
from specbench.results.frozen import Frozen

LEAST = 20  # judged tokens that a drawn number rests on


def select(frozen: Frozen) -> pd.DataFrame:
    """One row a policy and bin (part=calibration) or place (part=auc), over all tasks of a model and dtype.

    calibration: mean_chance, accepted_share; auc: position, auc; both: num_tokens; ece of all tokens of the policy.
    """
    runs = finished_runs(frozen, "acceptance_rate")
    judged = together(
        [described(rows.run, _judged(rows)) for rows in each_run(frozen, runs)],
        "no step whose stop rule gives a chance to a drafted token (pacer, scalars, specdecpp, confidence, ...)",
    )
    groups = judged.groupby(["model", "dtype", "label"], sort=False)
    frames = [_numbers(tokens) for _, tokens in groups if len(tokens) >= LEAST]
    return together(frames, f"fewer than {LEAST} judged tokens")


def _judged(rows: RunRows) -> pd.DataFrame:
    return judged_tokens(own_steps(rows.samples, rows.steps)).drop(columns="run_id")


def _numbers(tokens: pd.DataFrame) -> pd.DataFrame:
    parts = [
        calibration(tokens).assign(part="calibration"),
        auc_by_position(tokens).dropna(subset="auc").assign(part="auc"),
    ]
    numbers = pd.concat(parts, ignore_index=True).assign(ece=calibration_error(tokens))
    run = {**tokens.iloc[0][[*NAMES]], "panel": "all tasks", "task": " ".join(tokens["task"].unique())}
    return described({**run, "run_id": " ".join(tokens["run_id"].unique())}, numbers[numbers["num_tokens"] >= LEAST])


@styled
def build(frame: pd.DataFrame) -> Figure:
    """Left: share accepted by chance given, right: AUC by place; one line a policy."""
    if frame[["model", "dtype"]].drop_duplicates().shape[0] != 1:
        raise NotEnoughData("calibration is drawn for one model and dtype at a time")
    styles = looks(frame)
    figure, (left, right) = grid(2, height=2.4, share_x=False, share_y=False)
    for label, look in styles.items():
        rows = frame[frame["label"] == label]
        _calibration(left, rows, look)
        _auc(right, rows[rows["part"] == "auc"], look)
    left.plot([0, 1], [0, 1], color=INK, linewidth=0.7, linestyle=":", label="calibrated")
    right.axhline(0.5, color=INK, linewidth=0.7, linestyle="--", label="knows nothing")
    legend(
        figure,
        [left, right],
        columns=3,
        remark=f"judged tokens of all tasks; bins and places with {LEAST} tokens or more",
    )
    return figure


def _calibration(axis: Axes, rows: pd.DataFrame, look: Look) -> None:
    own = rows[rows["part"] == "calibration"]
    name = f"{look.name} (ECE {rows['ece'].iloc[0]:.3f})"
    axis.plot(own["mean_chance"], own["accepted_share"], label=name, **look.of_line())
    axis.set(xlabel="chance given by the rule", ylabel="share accepted", xlim=(0, 1), ylim=(0, 1.03))


def _auc(axis: Axes, rows: pd.DataFrame, look: Look) -> None:
    axis.plot(rows["position"].astype(float), rows["auc"].astype(float), **look.of_line())
    axis.set(xlabel="place in the draft", ylabel="AUC", ylim=(0, 1.03))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
