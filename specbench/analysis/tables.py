"""The tables of a results folder: ours, with the published numbers beside them in rows or columns of their own.

Every function takes frames as `load_frozen` gives them (or a part of them) and gives a `Table`; numbers of ours are
never mixed with published ones, which carry a mark of their quality.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from specbench.analysis.comparison import AR, RULE, fastest, timed_by_run
from specbench.analysis.conditions import commits, new_tokens
from specbench.analysis.headline import PLACE, as_they_come, headline, model_name, setting
from specbench.analysis.published import MARKS, published_cell
from specbench.analysis.ranking import ranking_notes
from specbench.analysis.table_text import EMPTY, Cell, Table, missing, span, with_interval
from specbench.results.frozen import Frozen


class Paper(NamedTuple):
    """What one paper compares: our arms in the order of the columns, and where its speedups stand."""

    name: str
    title: str
    experiment: str
    arms: tuple[str, ...]
    tables: tuple[str, ...]
    said: str


PAPERS = (
    Paper(
        "knapspec",
        "Self-speculation with chosen sublayers: speedup over AR",
        "knapspec_main",
        (AR, "del", "swift", "clasp", "knapspec"),
        ("Table 2",),
        "Published: measured wall clock, AR with the same code; how it is aggregated is not known.",
    ),
    Paper(
        "confl",
        "Self-speculation with layers chosen by confidence: speedup over AR",
        "confl_main",
        (AR, "swift", "confl"),
        ("logs", "abstract"),
        "Published: ratio of cumulative wall clock over 100 prompts x 512 tokens, search included, without stop ids.",
    ),
    Paper(
        "pacer",
        "Draft lengths chosen block by block: speedup over AR",
        "pacer_main",
        (AR, "sps", "ouroboros", "pacer", "pacer_ouroboros"),
        ("abstract", "aggregator", "EMNLP 2024"),
        "Published: model pair, hardware and aggregate are not known; our controller is PACER-style (docs/methods).",
    ),
)
_PAPER_NAMES = {"knapspec": ("knapspec",), "confl": ("confl", "swift"), "pacer": ("pacer", "ouroboros")}


def speedup_rows(frozen: Frozen, *, prefer: Sequence[str] = ()) -> pd.DataFrame:
    """One row a model, number format, sampling, task and method: the run's columns, and `best`.

    `best` is true where the paired comparison supports that this method is the fastest of its row (comparison.RULE).
    """
    return with_best(frozen, headline(frozen.runs, prefer=prefer))


def with_best(frozen: Frozen, chosen: pd.DataFrame) -> pd.DataFrame:
    """`chosen` (rows of `headline`) with `best`, judged among the rows of one PLACE, and `ar_best`, the same for AR."""
    found = leaders(frozen, chosen, chosen["walltime_speedup"].notna(), by="arm")
    return chosen.assign(best=found == chosen["arm"], ar_best=found == AR)


def leaders(frozen: Frozen, rows: pd.DataFrame, able: pd.Series, *, by: str, with_ar: bool = True) -> pd.Series:
    """For every row the name (column `by`) of the fastest of its PLACE, "" where none is beyond chance.

    Only rows that are `able` can be the fastest, and AR, which takes part as 1 (`with_ar`).
    """
    times = timed_by_run(frozen.samples[frozen.samples["run_id"].isin(rows.loc[able, "run_id"])])
    found = pd.Series("", index=rows.index)
    for _, own in rows.groupby(PLACE, sort=False):
        names = zip(own[by], own["run_id"], strict=True)
        found[own.index] = fastest({str(name): times[run] for name, run in names if run in times}, with_ar=with_ar)
    return found


def main_table(paper: Paper, frozen: Frozen, published: pd.DataFrame) -> Table:
    """Rows = our tasks, then the published cells; columns = methods. Notes say where the rankings differ and why."""
    chosen = headline(as_they_come(frozen.runs), prefer=[paper.experiment])
    chosen = chosen[chosen["arm"].isin(paper.arms)]
    compared = chosen["arm"].ne(AR).groupby([chosen[name] for name in PLACE]).transform("any").astype(bool)
    ours = with_best(frozen, chosen[compared])
    theirs = published[published["paper"].isin(_PAPER_NAMES[paper.name]) & published["table"].isin(paper.tables)]
    theirs = theirs[theirs["metric"].isin(["speedup", "speedup_max"]) & ~theirs["setting"].str.contains("window ")]
    rows = [*_our_rows(ours, paper.arms), *_their_rows(theirs, paper.arms)]
    return Table(
        f"{paper.name}_main",
        paper.title,
        ("source", "model", "task", "n", "new tokens", *paper.arms),
        tuple(rows),
        (RULE, MARKS, paper.said, *commits(ours), *ranking_notes(ours, theirs, paper.arms)),
    )


def _our_rows(ours: pd.DataFrame, arms: Sequence[str]) -> list[tuple[Cell, ...]]:
    return [_our_row(group, arms) for _, group in ours.groupby(PLACE, sort=False)]


def _our_row(group: pd.DataFrame, arms: Sequence[str]) -> tuple[Cell, ...]:
    by_arm = {str(row["arm"]): row for row in group.to_dict("records")}
    first = next(iter(by_arm.values()))
    ar = Cell("1.00", bool(first["ar_best"]))
    cells = [ar if name == AR else speedup_cell(by_arm.get(name)) for name in arms]
    names = (Cell("ours"), Cell(model_name(first)), Cell(setting(first)))
    return (*names, Cell(_counts(group)), Cell(new_tokens([first])), *cells)


def _counts(group: pd.DataFrame) -> str:
    """Conversations behind a row; AR itself does not count where there are others."""
    others = group[group["arm"] != AR]
    return span((others if len(others) else group)["num_measured"])


def speedup_cell(row: Mapping[Any, Any] | None) -> Cell:
    """Speedup with its interval, bold where `best`; `-` where nothing was measured."""
    if row is None or missing(row.get("walltime_speedup")):
        return EMPTY
    numbers = (row["walltime_speedup"], row.get("ci_low"), row.get("ci_high"))
    return Cell(with_interval(*numbers, noisy=row.get("noisy") is True), bool(row.get("best", False)))


def _their_rows(theirs: pd.DataFrame, arms: Sequence[str]) -> list[tuple[Cell, ...]]:
    rows = []
    for (_, model, task), group in theirs.groupby(["paper", "model", "task"], sort=False):
        by_arm = {str(row["method"]): row for row in group.to_dict("records")}
        if set(by_arm) & set(arms):
            cells = [published_cell(by_arm.get(name)) for name in arms]
            rows.append((Cell("published"), Cell(str(model)), Cell(str(task)), Cell(""), Cell(""), *cells))
    return rows
