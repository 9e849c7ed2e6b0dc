"""Ablations: one row a setting of an experiment, whichever keys it sweeps; published sweeps of the same kind below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from specbench.analysis.conditions import commits, new_tokens
from specbench.analysis.headline import PLACE, is_bound, labelled, model_name, setting
from specbench.analysis.published import MARKS, published_cell
from specbench.analysis.table_text import EMPTY, Cell, Table, number, shown
from specbench.analysis.tables import leaders, speedup_cell
from specbench.config.identity import LATER
from specbench.results.frozen import Frozen
from specbench.results.provenance import configured
from specbench.results.summary import CONFIGURED

_RULE = (
    "Bold: the fastest setting of a task, only where the paired 95 % interval of its speedup over the "
    "second fastest's excludes 1 (8 common conversations or more)."
)
# Settings that do not tell two rows apart: they say what was measured, not how the method was set.
_NOT_SWEPT = (
    *("cfg.task.", "cfg.model.", "cfg.measure.", "cfg.hardware.", "cfg.data.", "cfg.artefact."),
    *("cfg.num_samples", "cfg.size", "cfg.sampling.max_new_tokens"),
)
_SWEPT = ("cfg.model.draft_vocab",)  # settings of those groups that do tell rows apart
_BEFORE = {f"{CONFIGURED}{key}": value for key, value in LATER.items()}  # what runs have that are older than a key


class Sweep(NamedTuple):
    """An experiment that varies settings, and the published figures that vary the same."""

    experiment: str
    title: str
    figures: tuple[str, ...] = ()
    note: str = ""


_ALONE = "No published sweep of it could be read."
SWEEPS = (
    Sweep("pacer_block_size", "PACER-style control: block size", note=_ALONE),
    Sweep("pacer_threshold", "PACER-style control: threshold", note=_ALONE),
    Sweep("pacer_length_distribution", "Draft lengths under different rules"),
    Sweep("draft_vocab", "The draft's vocabulary", note="`hf_assisted` of the leaderboard drafts with the full one."),
    Sweep("pacer_ouroboros", "PACER-style control on Ouroboros"),
    Sweep("confl_lambda", "ConfLayers: lambda", ("figure speedup-vs-lam",)),
    Sweep("confl_window", "ConfLayers: window", ("figure speedup-vs-window",), "Published windows used other lambdas."),
    Sweep("confl_sensitivity", "ConfLayers: interval and context window", ("figure hyperparam-sensitivity",)),
    Sweep("knapspec_decoupling", "KnapSpec: attention and MLP decoupled"),
)


def sweep_rows(frozen: Frozen, experiment: str) -> tuple[pd.DataFrame, list[str]]:
    """The experiment's finished runs with `best`, and the configuration keys (`cfg.*`) that tell them apart.

    A key is swept when some method and controller of the experiment has it with several values.
    """
    part = frozen.of(experiment)
    runs = labelled(part.runs)
    keys = [key for key in configured(runs) if key in _SWEPT or not key.startswith(_NOT_SWEPT)]
    texts = runs[keys].fillna({key: value for key, value in _BEFORE.items() if key in keys}).map(shown)
    rule = runs["method"] + "/" + runs["controller"].fillna("")
    swept = [key for key in keys if (texts[key].groupby(rule).nunique() > 1).any()]
    best = leaders(part, runs, ~is_bound(runs), by="run_id", with_ar=False) == runs["run_id"]
    order = [*PLACE, "arm", *swept]
    return runs.assign(best=best, **{key: texts[key] for key in swept}).sort_values(order, key=_sortable), swept


def sweep_table(sweep: Sweep, frozen: Frozen, published: pd.DataFrame) -> Table:
    """Columns = what was swept, then speedup, acceptance, mat and drafted tokens a step."""
    runs, swept = sweep_rows(frozen, sweep.experiment)
    rows = [_our_row(run, swept) for run in runs.to_dict("records")]
    theirs = published[published["table"].isin(sweep.figures)]
    rows += [row for _, cell in theirs.groupby(_CLAIM, sort=False) for row in _their_row(cell, len(swept))]
    columns = ("source", "model", "task", "new tokens", "method", *(_short(key, swept) for key in swept), *_NUMBERS)
    notes = [_RULE, *([MARKS] if len(theirs) else []), *([sweep.note] if sweep.note else []), *commits(runs)]
    return Table(sweep.experiment, sweep.title, columns, tuple(rows), tuple(notes))


_CLAIM = ["table", "model", "task", "setting", "method"]
_NUMBERS = ("n", "speedup", "acceptance", "mat", "drafted/step")


def _our_row(run: Mapping[Any, Any], swept: Sequence[str]) -> tuple[Cell, ...]:
    names = (Cell("ours"), Cell(model_name(run)), Cell(setting(run)), Cell(new_tokens([run])), Cell(str(run["arm"])))
    return (
        *names,
        *(Cell(run[key]) for key in swept),
        number(run["num_measured"], 0),
        speedup_cell(run),
        number(run["acceptance_rate"], 3),
        number(run["mat"], 2),
        number(run.get("draft_tokens_per_step"), 2),
    )


def _their_row(claim: pd.DataFrame, num_swept: int) -> list[tuple[Cell, ...]]:
    """One published setting; nothing where it has neither speedup nor acceptance."""
    by_metric = {row["metric"]: row for row in claim.to_dict("records")}
    first = claim.iloc[0]
    speedup = by_metric.get("speedup", by_metric.get("cumulative_speedup"))
    rate = by_metric.get("acceptance_rate")
    if speedup is None and rate is None:
        return []
    names = (Cell("published"), Cell(first["model"]), Cell(first["task"]), EMPTY, Cell(first["method"]))
    settings = [Cell(first["setting"]), *[EMPTY] * (num_swept - 1)] if num_swept else []
    return [(*names, *settings, EMPTY, published_cell(speedup), published_cell(rate), EMPTY, EMPTY)]


def _short(key: str, swept: Sequence[str]) -> str:
    """The key's last word, or its whole path where two keys share it."""
    last = key.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in swept) == 1 else key.removeprefix(CONFIGURED)


def _sortable(column: pd.Series) -> pd.Series:
    """Numbers by size, texts behind them by name."""
    numbers = pd.to_numeric(column, errors="coerce")
    ranks = {text: rank for rank, text in enumerate(sorted(set(column.astype(str))))}
    return numbers.fillna(1e9 + column.astype(str).map(ranks))
