"""Under which conditions a run was measured: what must be equal before two methods are compared."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pandas as pd

from specbench.analysis.table_text import joined, missing, shown
from specbench.results.provenance import configured

TOKENS = "cfg.sampling.max_new_tokens"
_COMPARED = ("cfg.sampling.", "cfg.task.")
# Names of choices, what is a column of its own, and what other keys were resolved from.
_NOT_COMPARED = (
    *("cfg.sampling.name", "cfg.sampling.temperature", "cfg.task.name", "cfg.task.context_tokens"),
    *("cfg.task.only_source", "cfg.task.default_max_new_tokens"),
)
_MACHINE = ("device", "gpu", "cpu", "threads")


def with_conditions(runs: pd.DataFrame) -> pd.DataFrame:
    """`runs` with `conditions`, equal where numbers compare: answer length, other sampling and task keys, machine.

    `remark` says in short what tells a run's conditions apart from others of the frame (but for the answer length).
    """
    texts = _texts(runs)
    conditions = ["; ".join(row) for row in texts.itertuples(index=False)]
    return runs.assign(conditions=conditions, remark=_remarks(texts, [key for key in texts if key != TOKENS]))


def machines(runs: pd.DataFrame) -> list[str]:
    """What tells the machine of each run apart from those of others of the frame, in short; "" where all are of one."""
    texts = _texts(runs)
    return _remarks(texts, [name for name in _MACHINE if name in texts])


def _remarks(texts: pd.DataFrame, keys: Sequence[Hashable]) -> list[str]:
    told = [key for key in keys if texts[key].nunique() > 1]
    return [", ".join(_said(key, row[key]) for key in told) for row in texts.to_dict("records")]


def condition_keys(runs: pd.DataFrame) -> list[str]:
    """The keys of the configuration that are conditions and no settings of a method."""
    return [key for key in configured(runs) if key.startswith(_COMPARED) and key not in _NOT_COMPARED]


def _texts(runs: pd.DataFrame) -> pd.DataFrame:
    texts = runs[[*condition_keys(runs), *(name for name in _MACHINE if name in runs)]].map(shown)
    if "device" in texts:
        texts["device"] = texts["device"].str.partition(":")[0]
    return texts.sort_index(axis=1)


def _said(key: Hashable, text: str) -> str:
    key = str(key)
    if key == "threads":
        return "1 thread" if text == "1" else f"{text} threads"
    return text if key in _MACHINE else f"{key.rpartition('.')[2]}={text}"


def unusual(runs: pd.DataFrame, within: str) -> pd.Series:
    """Of each run what differs from most runs of its group (column `within`), in short; "" for most."""
    texts = _texts(runs)
    said = pd.DataFrame("", index=runs.index, columns=texts.columns)
    for key in texts:
        most = texts[key].groupby(runs[within]).transform(lambda values: values.mode().iloc[-1])
        different = texts[key] != most
        named = [f"{text} new tokens" if key == TOKENS else _said(key, text) for text in texts[key]]
        said[key] = pd.Series(named, index=runs.index).where(different, "")
    return pd.Series(joined(said), index=runs.index, dtype=object)


def new_tokens(runs: Sequence[Mapping[Any, Any]]) -> str:
    """The answers' lengths behind a row, smallest to largest; `-` where the rows do not say."""
    counts = sorted({int(run[TOKENS]) for run in runs if not missing(run.get(TOKENS))})
    return " / ".join(map(str, counts)) or "-"


def commits(runs: pd.DataFrame) -> tuple[str, ...]:
    """One sentence where the runs are of several commits, so that nobody takes them for one state of the code."""
    known = runs["commit"].dropna().astype(str).str[:9].unique() if "commit" in runs else ()
    return (f"Runs are of the commits {', '.join(sorted(known))}.",) if len(known) > 1 else ()
