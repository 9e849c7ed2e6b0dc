"""What all figures share: which runs can be drawn, how they are named, and a clear word where there are too few."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pandas as pd

from specbench.analysis.conditions import condition_keys, unusual
from specbench.analysis.table_text import joined, shown
from specbench.figures.style import CONTROLLERS, METHODS, Look, family, look_of, published
from specbench.results.frozen import Frozen
from specbench.results.provenance import configured
from specbench.results.schema import empty_frame
from specbench.results.store import FINISHED
from specbench.results.summary import CONFIGURED
from specbench.types import SpecbenchError

NAMES = ("run_id", "model", "dtype", "task", "panel", "method", "controller", "look", "label")
# Settings that do not tell two runs of one figure apart: they say how it was measured, are part of the panel, or are
# conditions, which are named where they are not those of the others.
_NOT_SHOWN = (
    *("num_samples", "experiment", "size", "measure", "data", "task", "hardware", "artefact"),
    *("model.name", "model.display_name", "model.data", "model.target", "model.draft_revision"),
)
CONTEXT = "cfg.task.context_tokens"


class NotEnoughData(SpecbenchError):  # noqa: N818 (what it is, not a fault)
    """There is nothing to draw; the text says what is missing and what would give it."""


class RunRows(NamedTuple):
    """One run: its row of `runs` with label and panel, and its rows of the other tables."""

    run: dict[str, Any]
    samples: pd.DataFrame
    steps: pd.DataFrame
    choices: pd.DataFrame


def finished_runs(frozen: Frozen, *needed: str) -> pd.DataFrame:
    """Finished runs that have every column of `needed`, with `panel` and `label`; NotEnoughData without any."""
    runs = frozen.runs
    runs = runs[runs["status"] == FINISHED].copy()
    if runs.empty:
        raise NotEnoughData("no finished runs")
    missing = [name for name in needed if name not in runs]
    kept = runs.dropna(subset=[name for name in needed if name in runs]) if not missing else runs.iloc[:0]
    if kept.empty:
        raise NotEnoughData(f"none of the {len(runs)} finished runs has {' and '.join(needed)}")
    return named(kept.copy()).reset_index(drop=True)


def each_run(frozen: Frozen, runs: pd.DataFrame) -> Iterator[RunRows]:
    """The runs one by one with their samples, steps and choices."""
    tables = {name: dict(iter(getattr(frozen, name).groupby("run_id"))) for name in ("samples", "steps", "choices")}
    for run in runs.to_dict("records"):
        parts = {name: groups.get(run["run_id"], empty_frame(name)) for name, groups in tables.items()}
        yield RunRows({str(key): value for key, value in run.items()}, **parts)


def described(run: dict[str, Any], rows: pd.DataFrame) -> pd.DataFrame:
    """`rows` behind the run's names, so that every drawn number says whose it is."""
    return pd.concat([pd.DataFrame([{name: run[name] for name in NAMES}] * len(rows), index=rows.index), rows], axis=1)


def together(frames: list[pd.DataFrame], why: str) -> pd.DataFrame:
    """The frames of all runs as one; NotEnoughData(why) where none has a row."""
    filled = [frame for frame in frames if not frame.empty]
    if not filled:
        raise NotEnoughData(why)
    return pd.concat(filled, ignore_index=True)


# ---- names


def named(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs with `panel` (task, and model or dtype where they differ) and a `label` that is unique in its panel.

    The label names the method; its controller too where runs of it differ in that; settings that differ otherwise; and
    conditions that are not those of most runs of the panel (length of the answers, machine). Of runs that differ in
    none the one with the most samples stays, of equals the latest.
    """
    several = runs.groupby("method")["controller"].transform("nunique") > 1
    by_controller = runs["method"] + "/" + runs["controller"].astype(str)
    runs = _with(runs, panel=_panels(runs), look=by_controller.where(several, runs["method"]))
    settings = pd.concat([_settings(own) for _, own in runs.groupby("look")])
    others = unusual(runs, "panel")
    said = joined(pd.DataFrame({"settings": settings, "others": others}, index=runs.index))
    runs = _with(runs, label=[_label(key, text) for key, text in zip(runs["look"], said, strict=True)])
    order = [name for name in ("num_measured", "finished_at") if name in runs]
    best = runs.sort_values(order, kind="stable").drop_duplicates(["panel", "label"], keep="last").index
    return runs[runs.index.isin(best)]


def _with(runs: pd.DataFrame, **columns: Any) -> pd.DataFrame:
    """The runs with more columns, in one step: inserted one by one, pandas warns of a frame in many pieces."""
    return pd.concat([runs, pd.DataFrame(columns, index=runs.index)], axis=1)


def looks(frame: pd.DataFrame) -> dict[str, Look]:
    """How each label of a frame (NAMES) is drawn, in the order of methods, controllers and settings."""
    groups: dict[str, list[str]] = {}
    for row in sorted(frame.drop_duplicates("label").to_dict("records"), key=_order):
        groups.setdefault(row["look"], []).append(row["label"])
    return {label: look for key, labels in groups.items() for label, look in family(look_of(key), labels).items()}


def in_order(rows: pd.DataFrame, styles: Mapping[str, Look]) -> list[dict[Any, Any]]:
    """The rows as records, in the order of the looks, so that legends have it too."""
    places = {label: place for place, label in enumerate(styles)}
    return rows.sort_values("label", key=lambda labels: labels.map(places), kind="stable").to_dict("records")


def _order(row: dict[Any, Any]) -> tuple[Any, ...]:
    """By method, controller, then what the label adds, numbers in it as numbers."""
    methods, controllers = list(METHODS), list(CONTROLLERS)
    (method, _), controller = published(row["method"]), row["controller"]
    place = methods.index(method) if method in methods else len(methods)
    stop = controllers.index(controller) if controller in controllers else len(controllers)
    return (place, row["method"], stop, [_number(word) for word in row["label"].replace("=", " ").split()])


def _number(word: str) -> tuple[float, str]:
    try:
        return float(word.strip(",")), ""
    except ValueError:
        return float("inf"), word


def _panels(runs: pd.DataFrame) -> list[str]:
    """The task; how long its contexts are where that differs; and model and dtype where they do."""
    texts = runs["task"].astype(str)
    if CONTEXT in runs:
        several = runs.groupby("task")[CONTEXT].transform("nunique") > 1
        tokens = runs[CONTEXT].map(lambda value: f" at {int(value)} tokens" if pd.notna(value) else "")
        texts = texts + tokens.where(several, "")
    for name in ("model", "dtype"):
        if runs[name].nunique() > 1:
            texts = texts + ", " + runs[name].astype(str)
    return list(texts)


def _settings(runs: pd.DataFrame) -> pd.Series:
    """What tells runs of one method in one panel apart, for each run; "" where nothing does."""
    told = condition_keys(runs)
    keys = [key for key in configured(runs) if key not in told]
    keys = [key for key in keys if not key.removeprefix(CONFIGURED).startswith(_NOT_SHOWN)]
    text = runs[keys].map(functools.partial(shown, nothing="none"))
    differing = [key for key in keys if (text[key].groupby(runs["panel"]).nunique() > 1).any()]
    if not differing:
        return pd.Series("", index=runs.index)
    said = [", ".join(f"{key.rpartition('.')[2]}={row[key]}" for key in differing) for row in text.to_dict("records")]
    return pd.Series(said, index=runs.index)


def whisker(row: Mapping[Any, Any], value: str, low: str = "ci_low", high: str = "ci_high") -> list[list[float]] | None:
    """How far an interval reaches below and above its value, for `errorbar`; None where there is none."""
    if pd.isna(row[low]) or pd.isna(row[high]):
        return None
    return [[max(0.0, row[value] - row[low])], [max(0.0, row[high] - row[value])]]


def _label(key: str, setting: str) -> str:
    return f"{look_of(key).name}, {setting}" if setting else look_of(key).name
