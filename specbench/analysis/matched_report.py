"""What a matched-cell experiment found, as text, from stored rows: acceptance, both classifications, costs, errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.analysis.matched_cells import (
    CELL,
    LABELS,
    MAIN_PARTS,
    OTHER_PARTS,
    RULE,
    Comparison,
    Rule,
    by_tuned_parts,
    compare,
    differing,
    main_tuning,
    rates,
    recovered,
)
from specbench.analysis.table_text import number, with_interval
from specbench.config.text import aligned
from specbench.results.cells import VARIANTS, load_cells, load_reconstruction
from specbench.results.summary import load_runs

# (after, before): tuned against as converted is the published comparison; the others say where it stands.
COMPARISONS = (("functional", "none"), ("functional", "kv"), ("none", "original"), ("functional", "original"))
_ARM = ["pair", "converter", "budget", "options", "variant", "tuning"]


def report(results_dir: str | Path, rule: Rule = RULE) -> str:
    """The tables of all finished runs of converted drafts below `results_dir`."""
    return report_of(load_cells(results_dir), load_reconstruction(results_dir), load_runs(results_dir), rule)


def report_of(cells: pd.DataFrame, layers: pd.DataFrame, runs: pd.DataFrame, rule: Rule = RULE) -> str:
    """The same from frames of cells, layers and runs (those that were frozen, for example)."""
    if cells.empty:
        return "no finished runs of method=mla"
    cells = _in_order(cells)
    usual, by_parts = main_tuning(cells), by_tuned_parts(cells)
    found = {pair: compare(usual, *pair, rule) for pair in COMPARISONS}
    found |= {(other, MAIN_PARTS): compare(by_parts, other, MAIN_PARTS, rule) for other in OTHER_PARTS}
    blocks = [
        ("Acceptance, % of drafted tokens", _acceptance(cells)),
        *((_title(*pair, rule), _differences(*pair, compared)) for pair, compared in found.items()),
        ("Acceptance that tuning gave back, of what conversion cost (cells that lost 2 points or more)", _back(cells)),
        (
            "Drafts: cache measured on its tensors, relative error behind the output projection",
            _drafts(cells, layers, runs),
        ),
        ("Wall-clock, real decoding", _speed(cells, runs)),
    ]
    return "\n\n".join("\n".join([title, *lines]) for title, lines in blocks if lines)


def _in_order(cells: pd.DataFrame) -> pd.DataFrame:
    """The original first, then converter by converter, budgets rising, variants, tasks, and tunings by their names."""
    place = cells["variant"].map(VARIANTS.index)
    keys = cells.assign(converted=place > 0, place=place)
    by = ["pair", "converted", "converter", "budget", "place", "task", "tuning"]
    return cells.loc[keys.sort_values(by, kind="stable").index]


def _acceptance(cells: pd.DataFrame) -> list[str]:
    """One row a cell: its arms side by side; several tunings of one variant follow each other."""
    known = rates(cells)
    converted = known[known["variant"] != "original"]
    only_original = converted.empty
    keys = (known if only_original else converted)[CELL].drop_duplicates()
    columns = _cell_columns(keys)
    lines = [[*(name for name, _ in columns), "prompts", *VARIANTS]]
    for cell in keys.to_dict("records"):
        own = _of(known, cell, CELL)
        original = _of(known[known["variant"] == "original"], cell, ["pair", "task", "setting", "acceptance"])
        arms = {variant: own[own["variant"] == variant] for variant in VARIANTS} | {"original": original}
        rows = [" / ".join(_percent(rate) for rate in arm["acceptance_rate"]) or "-" for arm in arms.values()]
        prompts = pd.concat(list(arms.values()))["prompts"]
        lines.append([*(text(cell) for _, text in columns), str(int(prompts.min())), *rows])
    return aligned(lines)


def _title(after: str, before: str, rule: Rule) -> str:
    tolerance = f"{100 * rule.tolerance:.1f}"
    if (after, before) == COMPARISONS[0]:
        return (
            f"{after} - {before}, percentage points. published rule: within {tolerance} is unchanged; ours: "
            f"{tolerance} or more, and the 95 % interval ({rule.draws} paired draws of prompts) excludes 0"
        )
    return f"{after} - {before}, percentage points"


def _differences(after: str, before: str, comparison: Comparison) -> list[str]:
    cells, pooled = comparison
    if cells.empty:
        return []
    columns = _cell_columns(cells)
    tunings = differing(cells["tuning"])
    header = [*(name for name, _ in columns), *(["tuning"] if any(tunings) else []), "n"]
    lines = [[*header, before, after, "delta [95 % interval]", "published rule", "ours", "q"]]
    for cell, tuning in zip(cells.to_dict("records"), tunings, strict=True):
        own = [text(cell) for _, text in columns] + ([tuning] if any(tunings) else [])
        labels = [str(cell["published"]), str(cell["label"]), number(cell["q"], 3).text]
        values = [str(cell["clusters"]), _percent(cell["before"]), _percent(cell["after"])]
        delta = with_interval(cell["delta_pp"], cell["low_pp"], cell["high_pp"], form="+.2f")
        lines.append([*own, *values, delta, *labels])
    return [*aligned(lines), _summary(pooled)]


def _summary(pooled: Mapping[str, Any]) -> str:
    def counts(by: Mapping[str, int]) -> str:
        return ", ".join(f"{by[label]} {label}" for label in LABELS if by.get(label))

    mean = with_interval(pooled["mean_delta_pp"], pooled["low_pp"], pooled["high_pp"], form="+.2f")
    signs = f"{pooled['up']} up, {pooled['down']} down (sign test p = {number(pooled['sign_p'], 3).text})"
    rules = f"published rule: {counts(pooled['published'])}; ours: {counts(pooled['label'])}"
    return f"{pooled['cells']} cells: mean {mean}; {signs}; {rules}"


def _back(cells: pd.DataFrame) -> list[str]:
    found = recovered(cells)
    if found.empty:
        return []
    columns, tunings = _cell_columns(found), differing(found["tuning"])
    more = ["tuning"] if any(tunings) else []
    lines = [[*(name for name, _ in columns), *more, "original", "none", "functional", "lost", "given back"]]
    for cell, tuning in zip(found.to_dict("records"), tunings, strict=True):
        values = [_percent(cell[name]) for name in ("before_original", "before", "after")]
        own = [text(cell) for _, text in columns] + ([tuning] if more else [])
        lines.append([*own, *values, f"{cell['loss_pp']:.2f}", f"{cell['share']:.0%}"])
    half = int((found["share"] >= 0.5).sum())
    return [*aligned(lines), f"at least half given back in {half} of {len(found)} cells"]


def _drafts(cells: pd.DataFrame, layers: pd.DataFrame, runs: pd.DataFrame) -> list[str]:
    """One row a draft: what it costs and how far its attention is from the original's."""
    arms = cells.drop_duplicates(_ARM).merge(runs, on="run_id", suffixes=("", "_run"))
    if arms.empty or "draft_kv_bytes_per_token" not in arms:
        return []
    full = arms[arms["variant"] == "original"].set_index("pair")["draft_kv_bytes_per_token"]
    options, tunings = differing(arms["options"]), differing(arms["tuning"])
    header = ["pair", "converter", "budget", "options", "variant", "tuning"]
    lines = [[*header, "KV bytes/token", "of the original", "error before", "after", "convert s", "tune s"]]
    for arm, option, tuning in zip(arms.to_dict("records"), options, tunings, strict=True):
        own = layers[layers["run_id"] == arm["run_id"]]
        size = arm["draft_kv_bytes_per_token"]
        share = _percent(size / full[arm["pair"]]) + " %" if arm["pair"] in full else "-"
        errors = [number(own[name].mean() if len(own) else None, 4).text for name in ("error_before", "error_after")]
        seconds = [number(arm.get(f"conversion.{name}_seconds"), 0).text for name in ("conversion", "tuning")]
        named = [arm["pair"], arm["converter"], f"{arm['budget']:.0%}", option, arm["variant"], tuning]
        lines.append([*named, number(size, 0).text, share, *errors, *seconds])
    return aligned(_without_empty_columns(lines))


def _speed(cells: pd.DataFrame, runs: pd.DataFrame) -> list[str]:
    rows = cells.drop_duplicates([*_ARM, "task", "setting", "acceptance"])
    rows = rows[rows["acceptance"] == "decode"].merge(runs, on="run_id", suffixes=("", "_run"))
    rows = rows[rows["tokens_per_second"].notna()]
    if rows.empty:
        return []
    columns = _cell_columns(rows)
    lines = [[*(name for name, _ in columns), "variant", "tok/s", "speedup over AR [95 % interval]", "mat"]]
    for row in rows.to_dict("records"):
        speedup = with_interval(*(row[name] for name in ("walltime_speedup", "ci_low", "ci_high")))
        own = [*(text(row) for _, text in columns), row["variant"]]
        lines.append([*own, number(row["tokens_per_second"], 1).text, speedup, number(row["mat"], 2).text])
    return aligned(lines)


# ---- cells of text


def _cell_columns(cells: pd.DataFrame) -> list[tuple[str, Callable[[Mapping[Any, Any]], str]]]:
    """Columns that name a cell; options, setting and how acceptance was found only where they differ."""
    short = dict(zip(cells["options"], differing(cells["options"]), strict=True))
    columns: list[tuple[str, Callable[[Mapping[Any, Any]], str]]] = [
        ("pair", lambda cell: str(cell["pair"])),
        ("converter", lambda cell: str(cell["converter"])),
        ("budget", lambda cell: f"{cell['budget']:.0%}"),
    ]
    if any(short.values()):
        columns.append(("options", lambda cell: short[cell["options"]]))
    columns.append(("task", lambda cell: str(cell["task"])))
    if cells["setting"].nunique() > 1:
        columns.append(("setting", lambda cell: str(cell["setting"])))
    if cells["acceptance"].nunique() > 1:
        columns.append(("by", lambda cell: str(cell["acceptance"])))
    return columns


def _of(frame: pd.DataFrame, cell: Mapping[Any, Any], keys: Sequence[str]) -> pd.DataFrame:
    chosen = pd.Series(True, index=frame.index)
    for key in keys:
        chosen &= frame[key] == cell[key]
    return frame[chosen]


def _without_empty_columns(lines: Sequence[Sequence[str]]) -> list[list[str]]:
    kept = [i for i in range(len(lines[0])) if any(line[i] for line in lines[1:])]
    return [[line[i] for i in kept] for line in lines]


def _percent(rate: float | None) -> str:
    return "-" if rate is None or pd.isna(rate) else f"{100 * rate:.2f}"
