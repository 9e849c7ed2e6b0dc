"""What happened in the course of a run: speed so far, skip sets over steps, predictions that came true or did not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from specbench.analysis.rows import arm, counted, floats, own_steps, pair, timed_conversations
from specbench.analysis.skipping import STANDING, expanded
from specbench.analysis.speed import PHASES
from specbench.analysis.stats import ratio_of_sums
from specbench.results.schema import KEY, METHOD


def cumulative_speedup(samples: pd.DataFrame) -> pd.DataFrame:
    """One row a timed conversation of one run in the order of decoding: prompt (from 1), sample_id, speedup so far.

    Speedup so far = the formula of `walltime_speedup` over this conversation and all before it.
    """
    rows = counted(samples)
    table = timed_conversations(pair(rows))
    begun = arm(rows, METHOD).groupby("sample_id")["started_at"].min()
    table = table.loc[sorted(table.index, key=lambda sample: begun[sample])]
    so_far = {str(name): floats(column)[:, None] for name, column in table.cumsum().items()}
    speedup = ratio_of_sums(so_far["decode_s_ar"], so_far["tokens_ar"], so_far["decode_s"], so_far["tokens"])
    return pd.DataFrame({"prompt": range(1, len(table) + 1), "sample_id": table.index, "speedup": speedup})


def search_end(samples: pd.DataFrame, choices: pd.DataFrame) -> int | None:
    """The prompt (from 1) in which the last search of one run ended; None where it had not, or never ends."""
    made = expanded(own_steps(samples, choices[choices["kind"] == "skip_set"]), ("reason", "active"))
    made = made[~made["reason"].isin(STANDING)].dropna(subset="active")
    if made.empty or bool(made.iloc[-1]["active"]):
        return None
    order = list(dict.fromkeys(arm(counted(samples), METHOD).sort_values("started_at")["sample_id"]))
    return order.index(made.iloc[-1]["sample_id"]) + 1


class Timeline(NamedTuple):
    """Skip sets over the verify steps of one run.

    `sets`: first_step, last_step (exclusive), sublayers (None = nothing was drafted); `answers`: steps at which a new
    answer begins; `num_steps` in all.
    """

    sets: pd.DataFrame
    answers: Sequence[int]
    num_steps: int


def skip_timeline(samples: pd.DataFrame, steps: pd.DataFrame, choices: pd.DataFrame) -> Timeline:
    """Which sublayers each verify step of one run left out of its draft; steps are counted through the run.

    Steps of an answer before its first choice are plain decoding where they drafted nothing, else the set before them.
    """
    taken = own_steps(samples, steps)
    taken = taken.assign(place=range(len(taken)))
    starts = taken.groupby(list(KEY), sort=False)["place"].min()
    made = _begun(own_steps(samples, choices[choices["kind"] == "skip_set"]), starts)
    for place in set(starts) - set(made):
        until = min(first for first in [*made, *starts, len(taken)] if first > place)
        if not (taken["num_tree_tokens"].iloc[place:until] > 0).any():
            made[place] = None
    firsts = sorted(made)
    ends = [*firsts[1:], len(taken)][: len(firsts)]
    sets = pd.DataFrame({"first_step": firsts, "last_step": ends}, dtype=int)
    sets["sublayers"] = pd.Series([made[first] for first in firsts], dtype=object)
    return Timeline(sets[sets["first_step"] < sets["last_step"]].reset_index(drop=True), starts.tolist(), len(taken))


def _begun(choices: pd.DataFrame, starts: pd.Series) -> dict[int, Any]:
    """The sublayers of every choice by the first step that used it; of several the last.

    Standing rows say what an answer starts with; a search's choice counts from the next step on.
    """
    made = expanded(choices, ("sublayers", "reason")).merge(starts.rename("start").reset_index(), on=list(KEY))
    offset = np.where(made["reason"].isin(STANDING), 0, 1)
    firsts = (made["start"] + made["step"] + offset).astype(int)
    return dict(zip(firsts, made["sublayers"], strict=True))


def predictions(samples: pd.DataFrame, steps: pd.DataFrame, choices: pd.DataFrame) -> pd.DataFrame:
    """One row a skip set of one run that drafted timed steps and whose search predicted its tokens a second.

    sample_id, step, predicted and measured, num_tokens, seconds (until the next choice, without searching), ar_seconds
    (of as many tokens of AR's answer to the sample, on average). Both are speeds over plain decoding, predicted as the
    search saw it and measured: rates themselves change with the machine's load since its profile was taken.
    """
    rate, plain = "predicted_tokens_per_second", "plain_tokens_per_second"
    made = expanded(own_steps(samples, choices[choices["kind"] == "skip_set"]), (rate, plain))
    made = made.assign(next_step=made.groupby(list(KEY))["step"].shift(-1).astype("Float64").fillna(np.inf))
    made = made.assign(predicted=floats(made[rate]) / floats(made[plain])).dropna(subset="predicted")
    taken = own_steps(samples, steps)
    taken = taken[taken["timed"].astype(bool)]
    taken = taken.assign(seconds=taken[[*PHASES]].sum(axis=1) - taken["adapt_s"])  # the search itself is not drafting
    both = taken.merge(made[[*KEY, "step", "next_step", "predicted"]], on=list(KEY), suffixes=("", "_of"))
    both = both[(both["step"] > both["step_of"]) & (both["step"] <= both["next_step"])]
    groups = both.groupby([*KEY, "step_of"], as_index=False)
    found = groups.agg(predicted=("predicted", "first"), num_tokens=("num_emitted", "sum"), seconds=("seconds", "sum"))
    timed = timed_conversations(pair(counted(samples)))
    ar_seconds = found["num_tokens"] * found["sample_id"].map(timed["decode_s_ar"] / timed["tokens_ar"])
    found = found.rename(columns={"step_of": "step"}).assign(ar_seconds=floats(ar_seconds)).dropna(subset="ar_seconds")
    found = found.assign(measured=found["ar_seconds"] / floats(found["seconds"]))
    return found[["sample_id", "step", "predicted", "measured", "num_tokens", "seconds", "ar_seconds"]]


def pooled_prediction(sets: pd.DataFrame) -> dict[str, float]:
    """The `predictions` of several sets as one: AR's seconds over those predicted, and over those measured."""
    ar_seconds = floats(sets["ar_seconds"])
    return {
        "predicted": float(ar_seconds.sum() / (ar_seconds / floats(sets["predicted"])).sum()),
        "measured": float(ar_seconds.sum() / floats(sets["seconds"]).sum()),
        "num_tokens": int(floats(sets["num_tokens"]).sum()),
        "seconds": float(floats(sets["seconds"]).sum()),
        "ar_seconds": float(ar_seconds.sum()),
    }
