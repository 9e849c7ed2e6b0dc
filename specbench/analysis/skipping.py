"""What searches for layers to skip did: the set they left, what they cost, and the speed after they had ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from specbench.analysis.rows import TURN, arm, floats, in_order, ratio
from specbench.analysis.speed import PHASES
from specbench.analysis.stats import bca_interval, ratio_of_sums
from specbench.results.schema import BASELINE, KEY, METHOD

STANDING = ("given", "initial", "carried_over", "full_model")  # reasons of rows that no search made
UnitOf = Callable[[str], str]

_NAMES = (
    "num_choices",
    "skip_set",
    "num_attention_skipped",
    "num_mlp_skipped",
    "search_share",
    "search_ended",
    "drafting_step_share",
)
_STEADY = ("num_conversations", "num_tokens", "tokens_per_second", "walltime_speedup", "ci_low", "ci_high")
_VALUES = ("sublayers", "num_attention_skipped", "num_mlp_skipped", "reason", "active")
_PLACE = ["started_at", "step"]  # where a row stands in the run


def skipping_metrics(
    rows: pd.DataFrame,
    steps: pd.DataFrame,
    choices: pd.DataFrame | None,
    *,
    unit_of: UnitOf | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Numbers of the method's skip sets; all None for methods without any. `rows` are the counted samples.

    - num_choices: rows that a search made, None where a set was given; 0 = a search that never ran
    - skip_set (sublayers 0..2L-1), num_attention_skipped, num_mlp_skipped: the last set; None = plain steps
    - search_share: adapt_s / decode_s of the timed rows; every candidate's time is in it, also of those not installed
    - search_ended: no search of the run was under way at its end; None where searches follow each other for ever
    - drafting_step_share: steps with a draft / steps
    - steady_*: of the steps after the last search; docs/metrics.md has the definition

    `unit_of` names what samples learn together (`method.scope`); None = each conversation learns for itself.
    """
    if choices is None:
        return dict.fromkeys([*_NAMES, *(f"steady_{name}" for name in _STEADY)])
    own = arm(rows, METHOD)
    made = _ordered(choices[choices["kind"] == "skip_set"], own, unit_of)
    made = expanded(made, _VALUES)
    searched = made[~made["reason"].isin(STANDING)]
    given = len(made) > 0 and bool((made["reason"] == "given").all())
    taken = _ordered(steps, own, unit_of)
    last = made.iloc[-1] if len(made) else None
    return {
        "num_choices": None if given else len(searched),
        **{name: _plain(last, column) for name, column in zip(_NAMES[1:4], _VALUES[:3], strict=True)},
        "search_share": None if given else _share(own),
        "search_ended": _ended(searched),
        "drafting_step_share": ratio(float((floats(taken["num_tree_tokens"]) > 0).sum()), len(taken)),
        **{f"steady_{name}": value for name, value in _steady(rows, steps, taken, searched, seed).items()},
    }


def expanded(choices: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The choices with the named entries of their `values` as columns of their own; None where a row has none."""
    entries = [json.loads(text) for text in choices["values"]]
    columns = {name: pd.Series([e.get(name) for e in entries], index=choices.index, dtype=object) for name in names}
    return choices.assign(**columns)


def _plain(row: pd.Series | None, column: str) -> Any:
    value = None if row is None else row[column]
    return value if value is None or isinstance(value, list) else int(value)


def _ordered(table: pd.DataFrame, own: pd.DataFrame, unit_of: UnitOf | None) -> pd.DataFrame:
    """The table's rows of the method's counted answers as they came, with the `unit` that learns together."""
    found = in_order(table, own)
    alone = found["sample_id"] + "|" + found["repeat"].astype(str)
    return found.assign(unit=alone if unit_of is None else found["sample_id"].map(unit_of))


def _share(own: pd.DataFrame) -> float | None:
    timed = own[own["timed"]]
    return ratio(floats(timed["adapt_s"]).sum(), floats(timed["decode_s"]).sum())


def _ended(searched: pd.DataFrame) -> bool | None:
    """Whether the last word of every unit's search was that it ended."""
    last = searched.groupby("unit")["active"].last().dropna()
    return None if last.empty else not last.astype(bool).any()


def _steady(
    rows: pd.DataFrame, steps: pd.DataFrame, taken: pd.DataFrame, searched: pd.DataFrame, seed: int
) -> dict[str, Any]:
    """Tokens per second, and speedup over AR's steps at the same places of the same answers."""
    after = _after_search(taken, searched)
    if after.empty:
        return dict.fromkeys(_STEADY)
    after = after.assign(seconds=after[list(PHASES)].sum(axis=1))
    table = _sums(after)
    numbers: dict[str, Any] = {
        "num_conversations": len(table),
        "num_tokens": int(table["num_emitted"].sum()),
        "tokens_per_second": ratio(table["num_emitted"].sum(), table["seconds"].sum()),
    }
    return dict.fromkeys(_STEADY) | numbers | _speedup(table, _baseline(rows, steps, after), seed)


def _after_search(taken: pd.DataFrame, searched: pd.DataFrame) -> pd.DataFrame:
    """Timed steps after the last search of their unit; none of a unit that never searched or is still at it."""
    ends = searched.groupby("unit")[[*_PLACE, "active"]].last().reset_index()
    ends = ends[ends["active"].ne(True)].drop(columns="active")
    both = taken[taken["timed"]].merge(ends, on="unit", suffixes=("", "_end"))
    later = both["started_at"] > both["started_at_end"]
    same = both["started_at"] == both["started_at_end"]
    return both[later | (same & (both["step"] > both["step_end"]))]


def _baseline(rows: pd.DataFrame, steps: pd.DataFrame, after: pd.DataFrame) -> pd.DataFrame:
    """AR's sums over the tokens from the place on at which each answer's steady steps begin."""
    begin = after.groupby(TURN)["context_length"].min().rename("begin").reset_index()
    timed = arm(rows, BASELINE)
    timed = timed[timed["timed"]]
    plain = steps.merge(timed[list(KEY)], on=list(KEY)).merge(begin, on=TURN)
    plain = plain[plain["context_length"] >= plain["begin"]]
    return _sums(plain.assign(seconds=plain[list(PHASES)].sum(axis=1)))


def _sums(steps: pd.DataFrame) -> pd.DataFrame:
    return steps.groupby("sample_id")[["num_emitted", "seconds"]].sum()


def _speedup(own: pd.DataFrame, baseline: pd.DataFrame, seed: int) -> dict[str, Any]:
    both = own.merge(baseline, left_index=True, right_index=True, suffixes=("", "_ar"))
    if both.empty:
        return {}
    seconds_ar, tokens_ar = floats(both["seconds_ar"]), floats(both["num_emitted_ar"])
    columns = (seconds_ar, tokens_ar, floats(both["seconds"]), floats(both["num_emitted"]))
    low, high = bca_interval(ratio_of_sums, columns, seed=seed) or (None, None)
    return {"walltime_speedup": float(ratio_of_sums(*columns)), "ci_low": low, "ci_high": high}
