"""Tables of the matched-cell experiment: acceptance of every cell, and how many cells rose, stayed or fell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from specbench.analysis.matched_cells import (
    CELL,
    IMPROVED,
    LABELS,
    MAIN_PARTS,
    OTHER_PARTS,
    TOO_FEW,
    UNCHANGED,
    WORSE,
    Comparison,
    arms,
    by_tuned_parts,
    compare,
    differing,
    main_tuning,
)
from specbench.analysis.published import MARKS, published_cell
from specbench.analysis.table_text import EMPTY, Cell, Table, joined, number, with_interval
from specbench.results.frozen import Frozen

VARIANTS = ("original", "none", "kv", "functional")
_RULES = (
    "Published rule: a difference within 0.5 percentage points is unchanged, without a test. Ours: at least 0.5 points "
    "and the 95 % interval of a paired bootstrap over clusters of equal prompts excludes 0."
)
_BOLD = "Bold: the cell improved or worsened by our rule."
_PARTS = (
    "qkv: queries, rotated keys, the latent and both up-projections; qk_down leaves the values' up-projection, qk the "
    "latent too."
)
_COUNTED = {"cells_up": IMPROVED, "cells_unchanged": UNCHANGED, "cells_down": WORSE}


def functional_over_kv(frozen: Frozen) -> Comparison:
    """What both tables are made of; its intervals take the time."""
    return compare(main_tuning(frozen.cells), "functional", "kv")


def mla_table(frozen: Frozen, published: pd.DataFrame, found: Comparison | None = None) -> Table:
    """One row a cell: acceptance (percent) of the variants, functional against kv with interval, and both labels."""
    found = found or functional_over_kv(frozen)
    ordered = _remarked(found.cells).sort_values(CELL, kind="stable")
    rows = [_cell_row(frozen.cells, cell) for cell in ordered.to_dict("records")]
    rows += _published_cells(published[published["paper"] == "mla"])
    columns = ("source", "pair", "converter", "budget", "task", *VARIANTS, "functional - kv (pp)")
    return Table(
        "mla_main",
        "MLA drafts: acceptance (%) in matched cells",
        (*columns, "published rule", "our rule"),
        tuple(rows),
        (_RULES, _BOLD, MARKS),
    )


def _cell_row(cells: pd.DataFrame, cell: Mapping[Any, Any]) -> tuple[Cell, ...]:
    judged = cell["label"] in (IMPROVED, WORSE)
    rates = [_rate(cells, variant, cell) for variant in ("original", "none")]
    rates += [100 * cell[side] for side in ("before", "after")]  # kv and functional, on the prompts that both have
    return (
        Cell("ours"),
        *_names(cell),
        *(number(rate, 2) for rate in rates),
        Cell(_difference(cell), judged),
        Cell(str(cell["published"])),
        Cell(str(cell["label"]), judged),
    )


def _remarked(found: pd.DataFrame) -> pd.DataFrame:
    """With `remark`: options, tuning, setting and how acceptance was found, as far as cells differ in them."""
    texts = pd.DataFrame({name: differing(found[name]) for name in ("options", "tuning")}, index=found.index)
    for name in ("setting", "acceptance"):
        texts[name] = found[name] if found[name].nunique() > 1 else ""
    return found.assign(remark=joined(texts))


def _names(cell: Mapping[Any, Any]) -> tuple[Cell, ...]:
    task = ", ".join(filter(None, [str(cell["task"]), cell["remark"]]))
    return (Cell(str(cell["pair"])), Cell(str(cell["converter"])), number(cell["budget"], 2), Cell(task))


def _rate(cells: pd.DataFrame, variant: str, cell: Mapping[Any, Any]) -> float | None:
    """Pooled acceptance of one arm of a cell in percent; None without rows."""
    rows = arms(cells, variant, cell).drop_duplicates("sample_id")
    proposed = float(rows["proposed"].sum())
    return 100 * float(rows["accepted"].sum()) / proposed if proposed else None


def _difference(cell: Mapping[Any, Any]) -> str:
    return with_interval(cell["delta_pp"], cell["low_pp"], cell["high_pp"], form="+.2f")


def _published_cells(theirs: pd.DataFrame) -> list[tuple[Cell, ...]]:
    """The few cells whose acceptance is known, and the one published difference."""
    rows = []
    wanted = theirs[theirs["metric"].isin(["acceptance_percent", "delta_acceptance_pp"])]
    for (model, task, setting), claim in wanted.groupby(["model", "task", "setting"], sort=False):
        by_variant = {row["method"]: row for row in claim[claim["metric"] == "acceptance_percent"].to_dict("records")}
        delta = next(iter(claim[claim["metric"] == "delta_acceptance_pp"].to_dict("records")), None)
        said = Cell(str(setting).rpartition("; ")[2])
        cells = [published_cell(by_variant.get(variant)) for variant in VARIANTS]
        rows.append(
            (
                Cell("published"),
                Cell(str(model)),
                said,
                EMPTY,
                Cell(str(task)),
                *cells,
                published_cell(delta),
                EMPTY,
                EMPTY,
            )
        )
    return rows


def mla_counts(frozen: Frozen, published: pd.DataFrame, found: Comparison | None = None) -> Table:
    """Cells that rose, stayed and fell from kv to functional, by pair, converter and budget; published counts below."""
    found = found or functional_over_kv(frozen)
    groups = found.cells.groupby(["pair", "converter", "budget"], sort=False)
    rows = [
        _count_row(str(pair), str(converter), f"{budget:.2f}", cells) for (pair, converter, budget), cells in groups
    ]
    if len(groups) > 1:
        rows.append(_count_row("all", "", "", found.cells))
    rows += _published_counts(published[published["paper"] == "mla"])
    columns = ("source", "pair", "converter", "budget", "cells")
    rules = [f"{label} ({rule})" for rule in ("published rule", "our rule") for label in LABELS[:3]]
    return Table(
        "mla_counts",
        "MLA drafts: functional reconstruction against kv reconstruction, cells",
        (*columns, *rules, TOO_FEW),
        tuple(rows),
        (_RULES, *_pooled(found), MARKS),
    )


def _count_row(pair: str, converter: str, budget: str, cells: pd.DataFrame) -> tuple[Cell, ...]:
    counts = [int((cells[rule] == label).sum()) for rule in ("published", "label") for label in LABELS[:3]]
    few = int((cells["label"] == TOO_FEW).sum())
    names = (Cell("ours"), Cell(pair), Cell(converter), Cell(budget), Cell(str(len(cells))))
    return (*names, *(Cell(str(count)) for count in counts), Cell(str(few)))


def _pooled(found: Comparison) -> list[str]:
    pooled = found.pooled
    if pooled["mean_delta_pp"] is None:
        return ["No cell has both variants."]
    mean = with_interval(pooled["mean_delta_pp"], pooled["low_pp"], pooled["high_pp"], form="+.2f")
    return [
        f"Ours, all cells with equal weight: {mean} percentage points; "
        f"{pooled['up']} cells above 0, {pooled['down']} below."
    ]


def _published_counts(theirs: pd.DataFrame) -> list[tuple[Cell, ...]]:
    rows = []
    counted = theirs[theirs["metric"].isin(list(_COUNTED))]
    for (model, setting), claim in counted.groupby(["model", "setting"], sort=False):
        by_metric = {row["metric"]: row for row in claim.to_dict("records")}
        total = Cell(f"{claim['value'].sum():.0f}") if len(by_metric) == len(_COUNTED) else EMPTY
        converter = str(setting).rpartition("; ")[2] if "; " in str(setting) else ""
        counts = [published_cell(by_metric.get(metric)) for metric in _COUNTED]
        empty = [EMPTY] * (len(LABELS))
        rows.append((Cell("published"), Cell(str(model)), Cell(converter), EMPTY, total, *counts, *empty))
    return rows


def train_params_table(frozen: Frozen) -> Table | None:
    """One row a cell: acceptance (percent) by what was tuned, and the difference to tuning all of it; None without."""
    rows = by_tuned_parts(frozen.cells)
    found = {parts: compare(rows, parts, MAIN_PARTS) for parts in OTHER_PARTS}
    judged = pd.concat([comparison.cells.assign(parts=parts) for parts, comparison in found.items()])
    if judged.empty:
        return None
    judged = _remarked(judged)
    lines = [_parts_row(frozen.cells, own) for _, own in judged.groupby([*CELL, "tuning"])]
    names = ("source", "pair", "converter", "budget", "task", "original", "none", MAIN_PARTS)
    columns = (*names, *(word for parts in OTHER_PARTS for word in (parts, f"{parts} - {MAIN_PARTS} (pp)")))
    pools = [f"{parts} - {MAIN_PARTS}: {line}" for parts, each in found.items() for line in _pooled(each)]
    title = "MLA drafts: acceptance (%) by the parts that are tuned"
    return Table("mla_train_params", title, columns, tuple(lines), (_PARTS, _BOLD, *pools))


def _parts_row(cells: pd.DataFrame, own: pd.DataFrame) -> tuple[Cell, ...]:
    cell = own.iloc[0].to_dict()
    rates = [number(_rate(cells, variant, cell), 2) for variant in ("original", "none")]
    by_parts = {row["parts"]: row for row in own.to_dict("records")}
    compared = [word for parts in OTHER_PARTS for word in _compared(by_parts.get(parts))]
    return (Cell("ours"), *_names(cell), *rates, number(100 * cell["before"], 2), *compared)


def _compared(row: Mapping[Any, Any] | None) -> tuple[Cell, Cell]:
    """Acceptance and its difference, bold where our rule judges; empty where the arm was not run."""
    if row is None:
        return EMPTY, EMPTY
    return number(100 * row["after"], 2), Cell(_difference(row), row["label"] in (IMPROVED, WORSE))


def known(frozen: Frozen) -> bool:
    """Whether the folder holds cells of the experiment at all."""
    return not frozen.cells.empty and set(CELL) <= set(frozen.cells.columns)
