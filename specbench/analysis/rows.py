"""Which stored rows count: used attempts of conversations that did not fail, and pairs of method and AR."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from specbench.results.schema import BASELINE, KEY, METHOD

TURN = ["sample_id", "turn", "repeat"]
# What is compared in pairs; rows are wide, and joining all of their columns takes ten times as long.
_COMPARED = ["timed", "num_tokens", "num_tree_tokens", "prefill_s", "decode_s", "draft_s", "text"]
PAIRED = ["used", "finish_reason", "arm", *TURN, *_COMPARED]  # columns that `counted` and `pair` need


class Outcomes(NamedTuple):
    """Sample ids by what became of them; a conversation with one failed turn failed."""

    recorded: set[str]
    failed: set[str]
    skipped: set[str]

    @property
    def measured(self) -> set[str]:
        return self.recorded - self.failed - self.skipped


def outcomes(samples: pd.DataFrame) -> Outcomes:
    """Sort the conversations of a samples frame by outcome, judging the rows marked `used` only."""
    used = samples[samples["used"]]
    failed = set(used.loc[used["finish_reason"] == "error", "sample_id"])
    skipped = set(used.loc[used["finish_reason"] == "skipped", "sample_id"])
    return Outcomes(set(samples["sample_id"]), failed, skipped - failed)


def counted(samples: pd.DataFrame) -> pd.DataFrame:
    """The used rows of conversations in which no turn of either arm failed or was skipped."""
    return samples[samples["used"] & samples["sample_id"].isin(outcomes(samples).measured)]


def arm(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """The rows of one arm."""
    return rows[rows["arm"] == name]


def in_order(table: pd.DataFrame, own: pd.DataFrame) -> pd.DataFrame:
    """Steps or choices of the answers `own` in the order they came, with started_at and timed."""
    found = table.merge(own[[*KEY, "started_at", "timed"]], on=list(KEY))
    return found.sort_values(["started_at", "step"], kind="stable").reset_index(drop=True)


def own_steps(samples: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """The method's steps (or choices) of the counted samples of one run, in order, with started_at and timed."""
    return in_order(steps, arm(counted(samples), METHOD))


def pair(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a turn that both arms decoded, with its tokens, seconds and text; AR's columns end in `_ar`."""
    narrow = rows[["arm", *TURN, *(name for name in _COMPARED if name in rows)]]  # live rates know the first few
    return arm(narrow, METHOD).merge(arm(narrow, BASELINE), on=TURN, suffixes=("", "_ar"))


def timed_conversations(pairs: pd.DataFrame) -> pd.DataFrame:
    """One row a conversation: tokens, decode_s, total_s and AR's, over its turns and repeats.

    A conversation counts when both arms of all its turns were timed and produced tokens.
    """
    table = pd.DataFrame({"sample_id": pairs["sample_id"]})
    usable = (pairs["timed"] & pairs["timed_ar"]).to_numpy(dtype=bool)
    for suffix in ("", "_ar"):
        tokens, decode = floats(pairs["num_tokens" + suffix]), floats(pairs["decode_s" + suffix])
        table["tokens" + suffix] = tokens
        table["decode_s" + suffix] = decode
        table["total_s" + suffix] = decode + floats(pairs["prefill_s" + suffix])
        usable &= (tokens > 0) & (decode > 0)
    whole = pd.Series(usable, index=table.index).groupby(table["sample_id"]).transform("all")
    return table[whole.astype(bool)].groupby("sample_id").sum()


def floats(column: pd.Series) -> np.ndarray:
    """A column as float64 with NaN for null."""
    return column.to_numpy(dtype=np.float64, na_value=np.nan)


def ratio(numerator: float, denominator: float) -> float | None:
    """numerator / denominator, or None where there is nothing to divide by."""
    if not denominator or np.isnan(numerator) or np.isnan(denominator):
        return None
    return float(numerator) / float(denominator)
