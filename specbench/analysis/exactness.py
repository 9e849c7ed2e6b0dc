"""Does the method give AR's tokens, and does the answer loop?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from specbench.analysis.rows import arm, floats, ratio
from specbench.results.schema import BASELINE, METHOD

NGRAM = 8


def first_divergence(tokens: Sequence[int], reference: Sequence[int]) -> int | None:
    """Index of the first differing token, None when equal; a missing or an extra token differs too."""
    for index, (token, expected) in enumerate(zip(tokens, reference, strict=False)):
        if token != expected:
            return index
    return None if len(tokens) == len(reference) else min(len(tokens), len(reference))


def repetition_rate(tokens: Sequence[int], n: int = NGRAM) -> float:
    """Share of the answer's n-grams that occurred before in it; 0 for an answer shorter than n."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def exactness_metrics(rows: pd.DataFrame) -> dict[str, Any]:
    """Agreement with AR and looping of the method's rows.

    exact_match_rate: share of conversations all of whose turns equal AR's ids (None without a comparison);
    num_divergent, num_ties, num_bugs: turns; teacher_agreement: pooled over AR's tokens; repetition_rate: mean.
    """
    own = arm(rows, METHOD)
    compared = own[own["exact_match"].notna()]
    exact = compared.groupby("sample_id")["exact_match"].all()
    turns = compared.drop_duplicates(["sample_id", "turn", "divergence_class", "exact_match"])
    classes = turns["divergence_class"]
    return {
        "exact_match_rate": float(exact.mean()) if len(exact) else None,
        "num_compared": len(exact),
        "num_divergent": int((~turns["exact_match"]).sum()),
        "num_ties": int((classes == "tie").sum()),
        "num_bugs": int((classes == "bug").sum()),
        "teacher_agreement": _teacher_agreement(rows),
        "repetition_rate": _mean(own["repetition_rate"]),
        "baseline_repetition_rate": _mean(arm(rows, BASELINE)["repetition_rate"]),
    }


def _teacher_agreement(rows: pd.DataFrame) -> float | None:
    keys = ["sample_id", "turn", "repeat"]
    lengths = arm(rows, BASELINE)[[*keys, "num_tokens"]]
    judged = arm(rows, METHOD)[[*keys, "teacher_agreement"]].dropna().merge(lengths, on=keys)
    weights = floats(judged["num_tokens"])
    return ratio(float((floats(judged["teacher_agreement"]) * weights).sum()), float(weights.sum()))


def _mean(column: pd.Series) -> float | None:
    return float(column.mean()) if column.notna().any() else None


def divergent_turns(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a divergent turn of the method's rows: where it left AR's answer, the fp32 logit gap and its class.

    Repeats that part from AR alike are one row, as in `exactness_metrics`.
    """
    own = arm(rows, METHOD)
    divergent = own[own["exact_match"].eq(False).fillna(False)]
    columns = ["sample_id", "turn", "divergence_index", "divergence_gap", "divergence_class"]
    return divergent[columns].drop_duplicates(["sample_id", "turn", "divergence_class"]).reset_index(drop=True)
