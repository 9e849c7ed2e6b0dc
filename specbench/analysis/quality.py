"""Scores of the answers for both arms, by conversation, and their paired difference."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from specbench.analysis.rows import arm
from specbench.analysis.stats import paired_difference
from specbench.results.schema import BASELINE, METHOD

SAME = 1e-9


def quality_metrics(rows: pd.DataFrame, *, seed: int = 0) -> dict[str, Any]:
    """Means of every score, `baseline_scores` of AR, and `score_deltas` (method - AR) with a BCa interval.

    num_score_disagreements counts conversations whose ids equal AR's but whose scores differ: always a fault.
    """
    own, baseline = _scores(arm(rows, METHOD)), _scores(arm(rows, BASELINE))
    return {
        "scores": _means(own),
        "baseline_scores": _means(baseline),
        "score_deltas": _deltas(own, baseline, seed),
        "num_score_disagreements": _disagreements(rows, own, baseline),
    }


def _scores(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a conversation, one column a score; conversations without a score are absent."""
    known = rows[rows["scores"].notna()]
    parsed = [json.loads(text) for text in known["scores"]]
    table = pd.DataFrame(parsed, index=pd.Index(known["sample_id"], name="sample_id"))
    return table.astype("float64").groupby(level=0).mean().dropna(how="all")


def _means(table: pd.DataFrame) -> dict[str, float]:
    return {str(name): float(value) for name, value in table.mean().items() if pd.notna(value)}


def _deltas(own: pd.DataFrame, baseline: pd.DataFrame, seed: int) -> dict[str, dict[str, float | None]]:
    deltas: dict[str, dict[str, float | None]] = {}
    for name in own.columns.intersection(baseline.columns, sort=False):
        both = pd.concat([own[name], baseline[name]], axis=1, keys=["own", "ar"], join="inner").dropna()
        difference = paired_difference(both["own"], both["ar"], seed=seed)
        if difference is not None:
            low, high = difference.interval or (None, None)
            deltas[str(name)] = {"mean": difference.mean, "ci_low": low, "ci_high": high}
    return deltas


def _disagreements(rows: pd.DataFrame, own: pd.DataFrame, baseline: pd.DataFrame) -> int:
    compared = arm(rows, METHOD)
    compared = compared[compared["exact_match"].notna()]
    exact = compared.groupby("sample_id")["exact_match"].all()
    ids = own.index.intersection(baseline.index).intersection(exact[exact.astype(bool)].index)
    names = own.columns.intersection(baseline.columns, sort=False)
    differs = (own.loc[ids, names] - baseline.loc[ids, names]).abs() > SAME
    return int(differs.any(axis=1).sum())
