"""All methods in one table of Spec-Bench's layout (speedup by subset, overall, mat), and the published boards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from specbench.analysis.comparison import AR, RULE, fastest, is_noisy, speedup_interval, speedup_of, timed_by_run
from specbench.analysis.conditions import machines, new_tokens
from specbench.analysis.headline import as_they_come, headline, model_name
from specbench.analysis.published import MARKS, published_cell
from specbench.analysis.ranking import ranking_notes, weighted
from specbench.analysis.table_text import EMPTY, Cell, Table, span, with_interval
from specbench.results.frozen import Frozen
from specbench.results.specbench_files import MT_BENCH, OVERALL, SUBSETS

_GROUP = ["model", "dtype", "source", "machine", "board"]
_SUBSET = {"mt_bench": "mt_bench", "gsm8k": "math_reasoning", "cnn_dm": "summarization"}  # one file, two names
_WHOLE = "spec_bench"
_CORE = (*_SUBSET, "humaneval")
_COUNT = (
    "Ours: gsm8k stands in math_reasoning and cnn_dm in summarization (Spec-Bench takes its questions from them); "
    "humaneval, which it lacks, has a column of its own. Overall pools all conversations of the row, weighted by "
    "tokens; it and mat exist only where a method has every column. n: conversations a column. Other tasks are in the "
    "tables of runs and of papers."
)
_THEIRS = (
    "Published: Vicuna-7B-v1.3, ratio of mean rates with prefill, AR's tokens counted again from its text, which "
    "flatters by about 1/n of a turn's tokens (docs/metrics.md has ours)."
)


def leaderboard_rows(frozen: Frozen) -> pd.DataFrame:
    """One row a model, dtype, source, board, arm and column: speedup, ci_low, ci_high, n, best, and the arm's mat.

    `source` = `spec_bench` (one run over all its subsets) or `tasks`; `machine` = its name where rows are of several;
    `column` = a subset, another task, or overall. A `board` holds one set of conditions (length of the answers, ...) a
    column: the first of a machine those of most of its runs.
    """
    return _rows(frozen, _timed(frozen))


def _rows(frozen: Frozen, chosen: pd.DataFrame) -> pd.DataFrame:
    known = chosen["task"].astype(str).str.removesuffix("_mini").isin([*_CORE, _WHOLE])
    chosen = chosen[known]
    chosen = chosen.assign(source=["spec_bench" if task == _WHOLE else "tasks" for task in chosen["task"]])
    chosen = chosen.assign(machine=machines(chosen)).assign(board=_boards)
    samples = frozen.samples[frozen.samples["run_id"].isin(chosen["run_id"])]
    times = timed_by_run(samples)
    category = samples.drop_duplicates(["run_id", "sample_id"]).set_index(["run_id", "sample_id"])["category"]
    rows = [row for _, runs in chosen.groupby(_GROUP, sort=False) for row in _board(runs, times, category)]
    names = [*_GROUP, "model_name", "new_tokens", "arm", "column", "mat"]
    return pd.DataFrame(rows, columns=[*names, "speedup", "ci_low", "ci_high", "n", "best", "noisy"])


def _timed(frozen: Frozen) -> pd.DataFrame:
    """The greedy runs that the board may show."""
    chosen = headline(as_they_come(frozen.runs), prefer=["specbench_leaderboard"])
    return chosen[(chosen["sampling"] == "greedy") & chosen["walltime_speedup"].notna()]


def _boards(chosen: pd.DataFrame) -> pd.Series:
    """The number of each run's board on its machine."""
    numbers = pd.Series(0, index=chosen.index)
    for _, runs in chosen.groupby(_GROUP[:-1], sort=False):
        order = list(runs["conditions"].value_counts().sort_index().sort_values(ascending=False, kind="stable").index)
        for _, own in runs.groupby("place", sort=False):
            there = [conditions for conditions in order if conditions in set(own["conditions"])]
            numbers[own.index] = own["conditions"].map(there.index)
    return numbers


def _board(runs: pd.DataFrame, times: Mapping[str, pd.DataFrame], category: pd.Series) -> list[dict[str, Any]]:
    """All cells of one model's board."""
    pieces: dict[str, dict[str, pd.DataFrame]] = {}
    for run in runs[runs["arm"] != AR].to_dict("records"):
        if run["run_id"] in times:
            for column, table in _columns(run, times[run["run_id"]], category).items():
                pieces.setdefault(column, {})[run["arm"]] = table
    arms = [arm for arm in runs["arm"].unique() if any(arm in tables for tables in pieces.values())]
    whole = {arm: _pooled(pieces, arm) for arm in arms if all(arm in tables for tables in pieces.values())}
    first = runs.iloc[0]
    common = {name: first[name] for name in _GROUP} | {"model_name": model_name(first.to_dict())}
    common["new_tokens"] = new_tokens(runs.to_dict("records"))
    steps = runs.get("num_steps", runs["mat"])  # without any run that has steps there is no mat either
    everywhere = runs[runs["arm"].isin([AR, *whole])]  # of some columns a mean says nothing beside that of all
    mats = {arm: weighted(own["mat"], steps.loc[own.index]) for arm, own in everywhere.groupby("arm")}
    return [
        common | {"arm": arm, "column": column, "mat": mats.get(arm), **cell}
        for column, tables in {**pieces, OVERALL: whole}.items()
        for arm, cell in _cells(tables).items()
    ]


def _columns(run: Mapping[Any, Any], table: pd.DataFrame, category: pd.Series) -> dict[str, pd.DataFrame]:
    """The run's conversations by column; sample ids are made unique by the task, so that columns can be pooled."""
    if run["source"] == "tasks":
        return {_SUBSET.get(run["place"], run["place"]): table.set_axis(run["place"] + "/" + table.index, axis=0)}
    labels = category.loc[run["run_id"]].reindex(table.index)
    subsets = labels.where(~labels.isin(MT_BENCH), "mt_bench")
    return {str(name): table.loc[ids] for name, ids in subsets.groupby(subsets).groups.items()}


def _pooled(pieces: Mapping[str, Mapping[str, pd.DataFrame]], arm: str) -> pd.DataFrame:
    return pd.concat([tables[arm] for tables in pieces.values()])


def _cells(tables: Mapping[str, pd.DataFrame]) -> dict[str, dict[str, Any]]:
    """Speedup, interval and `best` of every arm of one column; AR is best where nothing else is faster."""
    best = fastest(tables)
    cells: dict[str, dict[str, Any]] = {
        AR: {"speedup": 1.0, "ci_low": None, "ci_high": None, "n": None, "best": best == AR, "noisy": False}
    }
    for arm, table in tables.items():
        low, high = speedup_interval(table) or (None, None)
        cells[arm] = {"speedup": speedup_of(table), "ci_low": low, "ci_high": high, "n": len(table)}
        cells[arm] |= {"best": arm == best, "noisy": is_noisy(table)}
    return cells


def leaderboard_table(frozen: Frozen, published: pd.DataFrame) -> Table:
    """Ours by model, fastest first, then Spec-Bench's boards of Vicuna-7B; columns = subsets, mat, overall."""
    timed = _timed(frozen)
    rows = _rows(frozen, timed)
    columns = [*SUBSETS, *sorted(set(rows["column"]) - {*SUBSETS, OVERALL})]
    theirs = published[(published["paper"] == "spec_bench") & (published["model"] == "Vicuna-7B-v1.3")]
    cells = [row for _, board in rows.groupby(_GROUP, sort=False) for row in _our_rows(board, columns)]
    cells += [row for _, board in theirs.groupby("setting", sort=False) for row in _their_rows(board, columns)]
    return Table(
        "leaderboard",
        "Leaderboard: speedup over AR by subset",
        ("source", "n", "new tokens", "method", *columns, "mat", "overall"),
        tuple(cells),
        (RULE.replace("of a row", "of a column of one source"), MARKS, _COUNT, _THEIRS, *_rankings(timed, theirs)),
    )


def _rankings(ours: pd.DataFrame, theirs: pd.DataFrame) -> list[str]:
    """Where the order of a published board, over all its subsets, is not that of our runs on the same questions."""
    overall = theirs[theirs["task"] == OVERALL].assign(task=_WHOLE)
    named = overall.assign(model=overall["model"] + ", " + overall["setting"].map(_hardware))
    return ranking_notes(ours[ours["task"] == _WHOLE], named, sorted(ours["arm"].unique()))


def _hardware(published_setting: str) -> str:
    return published_setting.split(", ")[3]


def _our_rows(board: pd.DataFrame, columns: Sequence[str]) -> list[tuple[Cell, ...]]:
    overall = board[board["column"] == OVERALL].set_index("arm")["speedup"]
    arms = sorted(board["arm"].unique(), key=lambda arm: -overall.get(arm, 0.0))
    first = board.iloc[0]
    name = "ours" if first["source"] == "tasks" else f"ours, {_WHOLE}"
    source = ", ".join(filter(None, (f"{name}: {first['model_name']}", first["machine"])))
    return [_our_row(source, board[board["arm"] == arm], arm, columns) for arm in arms]


def _our_row(source: str, board: pd.DataFrame, arm: str, columns: Sequence[str]) -> tuple[Cell, ...]:
    by_column = {row["column"]: row for row in board.to_dict("records")}
    mat = next(iter(by_column.values()))["mat"]
    shown = EMPTY if mat is None or pd.isna(mat) else Cell(f"{mat:.2f}")
    numbers = [_number(by_column.get(column)) for column in columns]
    counts = [row["n"] for row in by_column.values() if row["column"] != OVERALL and not pd.isna(row["n"])]
    head = (Cell(source), Cell(span(counts)), Cell(str(board["new_tokens"].iloc[0])), Cell(arm))
    return (*head, *numbers, shown, _number(by_column.get(OVERALL), interval=True))


def _number(row: Mapping[Any, Any] | None, *, interval: bool = False) -> Cell:
    if row is None:
        return EMPTY
    low, high = (row["ci_low"], row["ci_high"]) if interval else (None, None)
    return Cell(with_interval(row["speedup"], low, high, noisy=row.get("noisy") is True), row["best"])


def _their_rows(board: pd.DataFrame, columns: Sequence[str]) -> list[tuple[Cell, ...]]:
    hardware = _hardware(board["setting"].iloc[0])
    rows = []
    for method, own in board.groupby("method", sort=False):
        speedups = {row["task"]: row for row in own[own["metric"] == "speedup"].to_dict("records")}
        mat = next(iter(own[own["metric"] == "mat"].to_dict("records")), None)
        cells = [published_cell(speedups.get(column)) for column in (*columns, OVERALL)]
        head = (Cell(f"published: {hardware}"), EMPTY, EMPTY, Cell(str(method)))
        rows.append((*head, *cells[:-1], published_cell(mat), cells[-1]))
    return rows
