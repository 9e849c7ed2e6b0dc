"""Tables with one row a run: acceptance and cost with the published rates beside, and where each number comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from specbench.analysis.comparison import AR
from specbench.analysis.conditions import commits, new_tokens
from specbench.analysis.exactness import divergent_turns, exactness_metrics
from specbench.analysis.headline import headline, model_name, records, setting
from specbench.analysis.published import MARKS, published_cell
from specbench.analysis.rows import counted
from specbench.analysis.table_text import EMPTY, Cell, Table, missing, number
from specbench.analysis.tables import speedup_cell
from specbench.analysis.theory import curve_of, prediction
from specbench.results.frozen import Frozen

_COST = (
    "A drafted token's cost is in AR tokens. Predicted: mat / (drafted * cost + t(rows) / t(1)), from the run's own "
    "steps and its measured t(T); what measured lacks of it is host and search time."
)
_RATES = (
    "acceptance: accepted / drafted along the chain; tree: siblings and phrases count too. Published rates of trees "
    "(ConfLayers, SWIFT) divide by the chain's length but count rescues by siblings."
)
_ORIGIN = (
    "n: conversations measured; new tokens: the budget a turn; diverged: turns whose tokens are not AR's, of them ties "
    "of the two best logits and bugs; load: mean load of the machine while it was measured; commit+: "
    "with changes that were not committed."
)

_EXACT = (
    "n: conversations compared with AR's greedy answer; exact: those with the same ids in every turn; diverged: turns "
    "with other ids, of them ties (the target's logits of the two candidates lie closer than measure.tie_gap: rounding "
    "decides) and bugs (anything else); position and logit gap (fp32): medians over diverged turns, at the first id "
    "that differs."
)


def acceptance_table(frozen: Frozen, published: pd.DataFrame) -> Table:
    """One row a task and method that drafts: what was accepted, what it cost and promised, what was published."""
    chosen = headline(frozen.runs)
    chosen = chosen[chosen["mat"].notna() & (chosen["arm"] != AR)]
    rows = [_acceptance_row(run, published) for run in records(chosen)]
    columns = ("model", "task", "new tokens", "method", "drafted/step", "acceptance", "tree", "mat", "cost")
    beside = ("predicted", "measured", "published acceptance", "published mat")
    notes = (_RATES, _COST, MARKS, *commits(chosen))
    return Table("acceptance", "Acceptance, cost and prediction", (*columns, *beside), tuple(rows), notes)


def _acceptance_row(run: Mapping[str, Any], published: pd.DataFrame) -> tuple[Cell, ...]:
    theirs = published[(published["method"] == run["method"]) & (published["task"] == run["task"])]
    theirs = theirs[~theirs["setting"].str.contains("window ")]
    rates = theirs[theirs["table"].isin(["logs", "Table 2"])]
    return (
        Cell(model_name(run)),
        Cell(setting(run)),
        Cell(new_tokens([run])),
        Cell(str(run["arm"])),
        number(run.get("draft_tokens_per_step"), 2),
        *(number(run.get(name), 3) for name in ("acceptance_rate", "tree_acceptance_rate")),
        *(number(run.get(name), 2) for name in ("mat", "cost_ratio")),
        number(prediction(run, curve_of(run.get("t_curve"))), 2),
        speedup_cell(run),
        _beside(rates[rates["metric"] == "acceptance_rate"]),
        _beside(theirs[theirs["metric"] == "mat"]),
    )


def _beside(rows: pd.DataFrame) -> Cell:
    """Every published value for this method and task, each with its model."""
    texts = [f"{row['model']} {published_cell(row).text}" for row in rows.to_dict("records")]
    return Cell("; ".join(dict.fromkeys(texts))) if texts else EMPTY


def runs_table(frozen: Frozen) -> Table:
    """One row a task and method: speed, exactness, and the commit and load it was measured with."""
    chosen = headline(frozen.runs)
    rows = [_run_row(run) for run in records(chosen)]
    columns = ("model", "task", "method", "n", "new tokens", "tok/s", "speedup", "exact", "diverged (ties/bugs)")
    return Table("runs", "Runs", (*columns, "load", "commit"), tuple(rows), (_ORIGIN, *_machines(chosen)))


def exactness_table(frozen: Frozen) -> Table | None:
    """One row a task and method that was compared with AR: how many answers part from AR's, where and how widely."""
    chosen = headline(frozen.runs)
    chosen = chosen[(chosen["arm"] != AR) & chosen.reindex(columns=["num_compared"])["num_compared"].gt(0)]
    samples = dict(iter(frozen.samples.groupby("run_id")))
    rows = [_exactness_row(run, samples[run["run_id"]]) for run in records(chosen) if run["run_id"] in samples]
    columns = ("model", "task", "method", "n", "exact", "diverged", "ties", "bugs", "position", "logit gap")
    return Table("exactness", "Exactness: answers beside AR's", columns, tuple(rows), (_EXACT,)) if rows else None


def _exactness_row(run: Mapping[str, Any], samples: pd.DataFrame) -> tuple[Cell, ...]:
    rows = counted(samples)
    found, turns = exactness_metrics(rows), divergent_turns(rows)
    exact = None if not found["num_compared"] else found["exact_match_rate"] * found["num_compared"]
    return (
        Cell(model_name(run)),
        Cell(setting(run)),
        Cell(str(run["arm"])),
        number(found["num_compared"], 0),
        number(exact, 0),
        *(number(found[name], 0) for name in ("num_divergent", "num_ties", "num_bugs")),
        number(_median(turns["divergence_index"]), 0),
        number(_median(turns["divergence_gap"]), 4),
    )


def _median(column: pd.Series) -> float | None:
    known = column.dropna()
    return float(known.median()) if len(known) else None


def _run_row(run: Mapping[str, Any]) -> tuple[Cell, ...]:
    return (
        Cell(model_name(run)),
        Cell(setting(run)),
        Cell(str(run["arm"])),
        number(run.get("num_measured"), 0),
        Cell(new_tokens([run])),
        number(run.get("tokens_per_second"), 1),
        speedup_cell(run) if run["arm"] != AR else Cell("1.00"),
        number(run.get("exact_match_rate"), 2),
        _diverged(run),
        number(run.get("load"), 1),
        Cell(str(run["commit"])[:9] + ("+" if run.get("dirty") else "")) if "commit" in run else EMPTY,
    )


def _diverged(run: Mapping[str, Any]) -> Cell:
    if not run.get("num_compared"):
        return EMPTY
    total, ties, bugs = (int(run[name]) for name in ("num_divergent", "num_ties", "num_bugs"))
    return Cell(f"{total} ({ties}/{bugs})" if total else "0")


def _machines(runs: pd.DataFrame) -> Sequence[str]:
    """One sentence a machine that runs were measured on."""
    names = [name for name in ("gpu", "cpu", "threads", "version.torch", "version.transformers") if name in runs]
    found = runs[names].drop_duplicates().to_dict("records") if names else []
    return [", ".join(f"{_plain(name)} {row[name]}" for name in names if not missing(row[name])) for row in found]


def _plain(name: str) -> str:
    return name.removeprefix("version.")
