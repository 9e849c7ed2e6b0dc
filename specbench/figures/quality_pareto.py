"""Speedup against the quality of the answers: who gives which of one for the other."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.analysis.conditions import TOKENS
from specbench.analysis.table_text import shown
from specbench.figures.base import NAMES, NotEnoughData, finished_runs, in_order, looks, whisker
from specbench.figures.style import FAINT, INK, from_zero, grid, legend, panels, styled
from specbench.results.frozen import Frozen

_NUMBERS = ["walltime_speedup", "ci_low", "ci_high", "score_name", "score", "baseline_score", "score_low", "score_high"]


def select(frozen: Frozen) -> pd.DataFrame:
    """One row a timed run of a task with a score: its first score, AR's, and the interval of the difference on it."""
    runs = finished_runs(frozen, "walltime_speedup")
    runs = _by_length(runs[runs["method"] != "ar"])  # AR is the dashed lines
    rows = [_scored(run) for run in runs.to_dict("records")]
    frame = pd.DataFrame([row for row in rows if row is not None], columns=[*NAMES, *_NUMBERS])
    if frame.empty:
        raise NotEnoughData("no timed run of a task with a score (gsm8k, cnn_dm, humaneval with execute_code)")
    return frame


def _by_length(runs: pd.DataFrame) -> pd.DataFrame:
    """A panel a length of the answers where a task has several: a longer answer is right more often."""
    if TOKENS not in runs or runs.empty:
        return runs
    several = runs.groupby("panel")[TOKENS].transform("nunique") > 1
    lengths = runs[TOKENS].map(lambda tokens: f", {shown(tokens)} new tokens")
    return runs.assign(panel=runs["panel"] + lengths.where(several, ""))


def _scored(run: dict[Any, Any]) -> dict[Any, Any] | None:
    names = [key.removeprefix("scores.") for key, value in run.items() if key.startswith("scores.") and pd.notna(value)]
    if not names:
        return None
    name = names[0]
    baseline = run.get(f"baseline_scores.{name}")
    low, high = (run.get(f"score_deltas.{name}.{side}") for side in ("ci_low", "ci_high"))
    return {
        **run,
        "score_name": name,
        "score": run[f"scores.{name}"],
        "baseline_score": baseline,
        "score_low": _sum(baseline, low),
        "score_high": _sum(baseline, high),
    }


def _sum(score: float | None, delta: float | None) -> float | None:
    return None if score is None or delta is None else float(score + delta)


@styled
def build(frame: pd.DataFrame) -> Figure:
    """One panel a task; the stair joins runs that no other beats in both."""
    styles, tasks = looks(frame), panels(frame)
    figure, axes = grid(len(tasks), height=2.2, share_y=False)
    for axis, task in zip(axes, tasks, strict=True):
        rows = frame[frame["panel"] == task]
        _front(axis, rows)
        for row in in_order(rows, styles):
            axis.errorbar(
                row["walltime_speedup"],
                row["score"],
                xerr=whisker(row, "walltime_speedup"),
                yerr=whisker(row, "score", "score_low", "score_high"),
                label=row["label"],
                elinewidth=0.6,
                **styles[row["label"]].of_point(),
            )
        if rows["baseline_score"].notna().any():
            axis.axhline(float(rows["baseline_score"].dropna().median()), color=INK, linewidth=0.7, linestyle="--")
        axis.axvline(1.0, color=INK, linewidth=0.7, linestyle="--")
        axis.set(title=task, xlabel="speedup over AR", ylabel=rows["score_name"].iloc[0])
        top = min(1.03, max(0.1, 1.25 * axis.get_ylim()[1]))
        axis.set_ylim(-0.05 * top if rows["score"].min() < 0.03 * top else 0, top)  # marks on the axis are seen whole
    from_zero(axes, "x")
    legend(figure, axes, remark="dashed: AR; vertical whiskers: the paired difference from AR's score")
    return figure


def front(rows: pd.DataFrame) -> pd.DataFrame:
    """The runs that no other run is at least as good as in both and better than in one, from slow to fast."""
    ordered = rows.sort_values(["walltime_speedup", "score"], ascending=False)
    best = ordered["score"].cummax()
    kept = ordered[(ordered["score"] > best.shift(fill_value=-1.0))]
    return kept.sort_values("walltime_speedup")


def _front(axis: Axes, rows: pd.DataFrame) -> None:
    kept = front(rows)
    axis.step(
        kept["walltime_speedup"],
        kept["score"],
        where="pre",
        color=FAINT,
        linewidth=2.5,
        zorder=1,
        label="beaten in neither",
    )
