"""How well a stop rule's judgement of drafted tokens agrees with what was accepted, from stored steps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from specbench.analysis.replay import scores_by_token
from specbench.analysis.rows import floats
from specbench.training.reliability import auc, expected_calibration_error, reliability

_KINDS = {"chances": False, "conditional_chances": True}  # entry of a step's info -> given all tokens before


def judged_tokens(steps: pd.DataFrame) -> pd.DataFrame:
    """One row a drafted token that the rule judged: run_id, position (1 = first of its step), chance, accepted.

    A gate's own chances where they are recorded, else the scores of rules that judge token by token, if they lie in
    [0, 1]. Chances given that all tokens before were accepted count up to the first rejected token: what comes later
    is undefined, not rejected.
    """
    rows = [row for step in steps.to_dict("records") for row in _tokens(step)]
    return pd.DataFrame(rows, columns=["run_id", "position", "chance", "accepted"])


def _tokens(step: Mapping[Any, Any]) -> list[dict[str, Any]]:
    if pd.isna(step["num_draft_tokens"]) or not step["num_draft_tokens"]:
        return []
    chances, conditional = _chances(step)
    accepted = int(step["num_accepted_spine"])
    defined = accepted + 1 if conditional else int(step["num_draft_tokens"])
    return [
        {"run_id": step.get("run_id"), "position": place, "chance": chance, "accepted": place <= accepted}
        for place, chance in enumerate(chances[:defined], start=1)
    ]


def _chances(step: Mapping[Any, Any]) -> tuple[Sequence[float], bool]:
    """Chances of the spine's tokens, and whether they are given that all before were accepted."""
    info, count = json.loads(step["info"]), int(step["num_draft_tokens"])
    for name, conditional in _KINDS.items():
        if name in info:
            return info[name][:count], conditional
    scores = scores_by_token(step)
    return (scores if all(0.0 <= score <= 1.0 for score in scores) else []), True


def calibration(judged: pd.DataFrame, bins: int = 10) -> pd.DataFrame:
    """One row a bin of equal width that is not empty: mean_chance, accepted_share, num_tokens."""
    return pd.DataFrame(
        reliability(floats(judged["chance"]), floats(judged["accepted"]), bins),
        columns=["mean_chance", "accepted_share", "num_tokens"],
    )


def calibration_error(judged: pd.DataFrame) -> float:
    """Mean distance between chance and accepted share over bins, weighted by how full they are."""
    return expected_calibration_error(floats(judged["chance"]), floats(judged["accepted"]))


def auc_by_position(judged: pd.DataFrame) -> pd.DataFrame:
    """One row a position: auc (None where only one kind of token was seen) and num_tokens.

    Pooled over positions it is flattered by the fall of acceptance with depth: this says what a rule knows.
    """
    rows = [
        (position, auc(floats(tokens["chance"]), tokens["accepted"].to_numpy(dtype=np.bool_)), len(tokens))
        for position, tokens in judged.groupby("position")
    ]
    return pd.DataFrame(rows, columns=["position", "auc", "num_tokens"])
