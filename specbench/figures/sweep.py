"""Speedup, acceptance and draft length over a setting that was swept, or over the length of the context."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.figures.base import CONTEXT, NAMES, NotEnoughData, finished_runs
from specbench.figures.style import (
    INK,
    NOISY_REMARK,
    Look,
    from_zero,
    grid,
    in_order,
    legend,
    look_of,
    mark_noisy,
    remarks,
    styled,
    variant,
)
from specbench.results.frozen import Frozen
from specbench.results.provenance import configured
from specbench.results.summary import CONFIGURED

LEAST = 3  # values that make a sweep
_SHOWN = {
    "walltime_speedup": "speedup over AR",
    "acceptance_rate": "acceptance rate",
    "draft_tokens_per_step": "tokens drafted a step",
    "sublayers_left_out": "sublayers left out",  # by the last set
}
_LABELS = {CONTEXT.removeprefix(CONFIGURED): "context (tokens)", "method.lam": "λ"}


def select(frozen: Frozen) -> pd.DataFrame:
    """One row a run that belongs to the sweep, with the setting's name and value.

    The setting with the most numeric values is taken (the context's length counts as one). Runs that differ in other
    settings are lines of their own.
    """
    runs = finished_runs(frozen, "walltime_speedup", "acceptance_rate")
    found = [(len(values), key, own) for _, own in runs.groupby("look") for key, values in _swept(own).items()]
    if not found:
        raise NotEnoughData(f"no method was run with {LEAST} values or more of a numeric setting on one task")
    _, key, own = max(found, key=lambda item: item[0])
    own = runs if key == CONTEXT else own
    value = pd.to_numeric(own[key], errors="coerce")
    line = [_line(run, key) for run in own.to_dict("records")]
    own = own.assign(setting=key.removeprefix(CONFIGURED), value=value, line=line)
    own = own.assign(sublayers_left_out=_left_out(own)).dropna(subset="value").sort_values("value")
    columns = [*NAMES, "setting", "value", "line", "ci_low", "ci_high", "noisy", *_SHOWN]
    return own.assign(noisy=own["noisy"].eq(True))[columns].reset_index(drop=True)


def _swept(runs: pd.DataFrame) -> dict[str, set[float]]:
    """Numeric settings of one method with LEAST values or more on one task."""
    named = {part.partition("=")[0] for label in runs["label"] for part in label.split(", ")[1:]}
    keys = [key for key in configured(runs) if key.rpartition(".")[2] in named or key == CONTEXT]
    found = {}
    for key in keys:
        values = pd.to_numeric(runs[key], errors="coerce")
        if values.groupby(runs["task"]).nunique().max() >= LEAST:
            found[key] = set(values.dropna())
    return found


def _line(run: dict[Any, Any], key: str) -> str:
    """Who or what a line is: the method over contexts, the panel over a setting, and what else differs."""
    if key == CONTEXT:
        return str(run["label"])
    name = key.rpartition(".")[2]
    others = [part for part in run["label"].split(", ")[1:] if not part.startswith(f"{name}=")]
    return ", ".join([run["panel"], *others])


def _left_out(runs: pd.DataFrame) -> pd.Series:
    counts = ["num_attention_skipped", "num_mlp_skipped"]
    return runs.reindex(columns=counts).astype(float).sum(axis=1, min_count=2)


@styled
def build(frame: pd.DataFrame) -> Figure:
    """One panel a number, one line a task (or a method, over contexts)."""
    shown = [name for name in _SHOWN if frame[name].notna().any()]
    figure, axes = grid(len(shown), height=1.8, most=2 if len(shown) == 4 else 3, share_y=False)
    styles, setting = _looks(frame), frame["setting"].iloc[0]
    for axis, name in zip(axes, shown, strict=True):
        for line, look in styles.items():
            rows = frame[frame["line"] == line]
            axis.plot(rows["value"], rows[name].astype(float), label=line, **look.of_line())
        axis.set(xlabel=_LABELS.get(setting, setting), ylabel=_SHOWN[name])
    _intervals(axes[0], frame, styles)
    for axis in axes:
        from_zero([axis], "y")
    few = ("speedups without whiskers: fewer than 8 conversations", frame["ci_low"].isna().any())
    legend(figure, axes, columns=3, remark=remarks(few, (NOISY_REMARK, frame["noisy"].any())))
    return figure


def _looks(frame: pd.DataFrame) -> dict[str, Look]:
    """Methods look like themselves; lines of one method differ from dark to light."""
    by_look = frame.drop_duplicates("line").groupby("look", sort=False)["line"].agg(list)
    found = {}
    for key, named in by_look.items():
        own, lines = look_of(str(key)), sorted(named, key=in_order)
        alone = len(by_look) > 1 and len(lines) == 1
        for number, line in enumerate(lines):
            found[line] = own if alone else variant(own, number, len(lines), line)
    return found


def _intervals(axis: Axes, frame: pd.DataFrame, styles: dict[str, Look]) -> None:
    axis.axhline(1.0, color=INK, linewidth=0.7, linestyle="--")
    for row in frame[frame["noisy"]].to_dict("records"):
        mark_noisy(axis, float(row["value"]), row["walltime_speedup"])
    known = frame.dropna(subset=["ci_low", "ci_high"])
    colors = [styles[line].color for line in known["line"]]
    axis.vlines(known["value"].astype(float), known["ci_low"], known["ci_high"], colors=colors, linewidth=0.8)
