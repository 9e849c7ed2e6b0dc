"""The closing table of a set of runs, as text cells, from what `load_runs` gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd

from specbench.analysis.headline import marked, records
from specbench.analysis.table_text import number, shown, with_interval
from specbench.analysis.theory import curve_of, worth_it
from specbench.results.provenance import configured

COLUMNS = (
    "model",
    "method",
    "controller",
    "task",
    "dtype",
    "n",
    "tok/s",
    "speedup [95 % CI]",
    "mat",
    "acceptance",
    "exact",
    "diverged (ties/bugs)",
    "quality",
)
# Only where some run skips layers: sublayers left out at the end, the searches' share of the time, speed after them.
SKIPPING = ("skipped attn/MLP", "search time", "steady state")

SETTINGS = "settings"  # only where runs of one method and task differ in them
_NOT_SETTINGS = ("cfg.measure.", "cfg.artefact.", "cfg.size", "cfg.model.name", "cfg.model.display_name", "cfg.seed")


class ClosingTable(NamedTuple):
    """Header, cells (one row a run) and one line a run below the table."""

    columns: list[str]
    rows: list[list[str]]
    notes: list[str]


def closing_table(runs: pd.DataFrame) -> ClosingTable:
    """The table and the "was it worth it" lines of `load_runs(...)`; `t_curve` [[T, seconds], ...] is used if there."""
    known = records(runs)
    columns, cells = list(COLUMNS), [_cells(run) for run in known]
    settings = _settings(runs)
    if any(settings):
        place = columns.index("dtype") + 1
        columns.insert(place, SETTINGS)
        cells = [[*own[:place], said, *own[place:]] for own, said in zip(cells, settings, strict=True)]
    if any(_chooses(run) for run in known):
        columns += SKIPPING
        cells = [[*own, *_skipping(run)] for own, run in zip(cells, known, strict=True)]
    return ClosingTable(columns, cells, [_note(run) for run in known])


def _settings(runs: pd.DataFrame) -> list[str]:
    """What tells runs of one method and task apart; "" where nothing does."""
    keys = [key for key in configured(runs) if not key.startswith(_NOT_SETTINGS)]
    texts = runs[keys].map(shown)
    names = runs[list(COLUMNS[:5])].map(shown).agg(" ".join, axis=1)
    several = {key: texts[key].groupby(names).transform("nunique") > 1 for key in keys}
    said = [(key.rpartition(".")[2], texts[key], several[key]) for key in keys if several[key].any()]
    return [", ".join(f"{name}={text[i]}" for name, text, differ in said if differ[i]) for i in runs.index]


def _cells(run: Mapping[str, Any]) -> list[str]:
    names = [str(run.get(name, "-")) for name in ("model", "method", "controller", "task", "dtype")]
    names[2] = marked(names[2], run)
    if run["status"] in ("interrupted", "corrupt"):
        return [*names, str(run["status"]), *["-"] * (len(COLUMNS) - len(names) - 1)]
    return [
        *names,
        _count(run),
        number(run.get("tokens_per_second"), 1).text,
        _speedup(run),
        number(run.get("mat"), 2).text,
        number(run.get("acceptance_rate"), 3).text,
        number(run.get("exact_match_rate"), 2).text,
        _divergences(run),
        _quality(run),
    ]


def _count(run: Mapping[str, Any]) -> str:
    measured, failed, skipped = (int(run.get(f"num_{name}", 0)) for name in ("measured", "failed", "skipped"))
    lost = [f"{count} {word}" for count, word in ((failed, "failed"), (skipped, "skipped")) if count]
    return f"{measured} ({', '.join(lost)})" if lost else str(measured)


def _speedup(run: Mapping[str, Any]) -> str:
    numbers = (run.get(name) for name in ("walltime_speedup", "ci_low", "ci_high"))
    return with_interval(*numbers, unit="x", noisy=bool(run.get("noisy")))


def _chooses(run: Mapping[str, Any]) -> bool:
    return any(run.get(name) is not None for name in ("num_choices", "num_attention_skipped"))


def _skipping(run: Mapping[str, Any]) -> list[str]:
    attention, mlp, share = (run.get(name) for name in ("num_attention_skipped", "num_mlp_skipped", "search_share"))
    skipped = "-" if attention is None or mlp is None else f"{int(attention)}/{int(mlp)}"
    return [skipped, "-" if share is None else f"{share:.1%}", _steady(run)]


def _steady(run: Mapping[str, Any]) -> str:
    rate, speedup = run.get("steady_tokens_per_second"), run.get("steady_walltime_speedup")
    if rate is None:
        return "-"
    return f"{rate:.1f} tok/s" if speedup is None else f"{speedup:.2f}x ({rate:.1f} tok/s)"


def _divergences(run: Mapping[str, Any]) -> str:
    if not run.get("num_compared"):
        return "-"
    total, ties, bugs = (int(run.get(name, 0)) for name in ("num_divergent", "num_ties", "num_bugs"))
    return f"{total} ({ties}/{bugs})" if total else "0"


def _quality(run: Mapping[str, Any]) -> str:
    """The task's first score, AR's beside it."""
    names = [key.removeprefix("scores.") for key in run if key.startswith("scores.")]
    if not names:
        return "-"
    baseline = run.get(f"baseline_scores.{names[0]}")
    beside = "" if baseline is None else f" (AR {baseline:.3f})"
    return f"{names[0]} {run[f'scores.{names[0]}']:.3f}{beside}"


def _note(run: Mapping[str, Any]) -> str:
    if run["status"] == "interrupted":
        return f"{run['run_id']}: interrupted; the same command continues it"
    if run["status"] == "corrupt":
        return f"{run['run_id']}: corrupt: {run.get('error', 'unreadable')}"
    failed = f"failed: {run.get('error', 'see its samples')}; " if run["status"] == "failed" else ""
    verdict = "the baseline itself" if run.get("method") == "ar" else worth_it(run, curve_of(run.get("t_curve")))
    return f"{run['run_id']}: {failed}{verdict}"
