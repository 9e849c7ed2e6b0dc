"""What happened in the course of a run: speed so far, skip sets over steps, predictions that came true or did not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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
    so_far = table[["decode_s_ar", "tokens_ar", "decode_s", "tokens"]].cumsum()
    speedup = ratio_of_sums(*(floats(so_far[name])[:, None] for name in so_far))
    return pd.DataFrame({"prompt": range(1, len(table) + 1), "sample_id": table.index, "speedup": speedup})


def search_end(samples: pd.DataFrame, choices: pd.DataFrame) -> int | None:
    """The prompt (from 1) in which the last search of one run ended; None where it had not, or never ends."""
    made = expanded(_ordered(choices[choices["kind"] == "skip_set"], samples), ("reason", "active"))
    made = made[~made["reason"].isin(STANDING)].dropna(subset="active")
    if made.empty or bool(made.iloc[-1]["active"]):
        return None
    order = list(dict.fromkeys(arm(counted(samples), METHOD).sort_values("started_at")["sample_id"]))
    return order.index(made.iloc[-1]["sample_id"]) + 1


class Timeline(NamedTuple):
    """Skip sets over the verify steps of one run.

    `sets`: first_step, last_step (exclusive), sublayers (None = plain decoding); `answers`: steps at which a new
    answer begins; `num_steps` in all.
    """

    sets: pd.DataFrame
    answers: Sequence[int]
    num_steps: int


def skip_timeline(samples: pd.DataFrame, steps: pd.DataFrame, choices: pd.DataFrame) -> Timeline:
    """Which sublayers each verify step of one run left out of its draft; steps are counted through the run."""
    taken = own_steps(samples, steps)
    taken = taken.assign(place=range(len(taken)))
    starts = taken.groupby(list(KEY), sort=False)["place"].min()
    made = expanded(_ordered(choices[choices["kind"] == "skip_set"], samples), ("sublayers", "reason"))
    begin = made.merge(starts.rename("start").reset_index(), on=list(KEY))
    # Standing rows say what an answer starts with; a search's choice counts from the next step on.
    offset = np.where(begin["reason"].isin(STANDING), 0, 1)
    begin = begin.assign(first_step=begin["start"] + begin["step"] + offset)
    last = begin.drop_duplicates("first_step", keep="last")[["first_step", "sublayers"]].reset_index(drop=True)
    ends = [*last["first_step"].tolist()[1:], len(taken)]
    sets = last.assign(last_step=ends)[["first_step", "last_step", "sublayers"]]
    return Timeline(sets[sets["first_step"] < sets["last_step"]].reset_index(drop=True), starts.tolist(), len(taken))


def predictions(samples: pd.DataFrame, steps: pd.DataFrame, choices: pd.DataFrame) -> pd.DataFrame:
    """One row a skip set of one run that drafted timed steps and whose search predicted its tokens a second.

    sample_id, step, predicted and measured (tokens per second until the next choice), num_tokens, seconds.
    """
    made = expanded(_ordered(choices[choices["kind"] == "skip_set"], samples), ("predicted_tokens_per_second",))
    made = made.assign(next_step=made.groupby(list(KEY))["step"].shift(-1).astype("Float64").fillna(np.inf))
    made = made.dropna(subset="predicted_tokens_per_second")[[*KEY, "step", "next_step", "predicted_tokens_per_second"]]
    taken = own_steps(samples, steps)
    taken = taken[taken["timed"].astype(bool)]
    taken = taken.assign(seconds=taken[[*PHASES]].sum(axis=1) - taken["adapt_s"])  # the search itself is not drafting
    both = taken.merge(made, on=list(KEY), suffixes=("", "_of"))
    both = both[(both["step"] > both["step_of"]) & (both["step"] <= both["next_step"])]
    groups = both.groupby([*KEY, "step_of"], as_index=False)
    found = groups.agg(
        predicted=("predicted_tokens_per_second", "first"),
        num_tokens=("num_emitted", "sum"),
        seconds=("seconds", "sum"),
    )
    found = found.rename(columns={"step_of": "step"})
    rate = floats(found["num_tokens"]) / floats(found["seconds"])
    return found.assign(measured=rate)[["sample_id", "step", "predicted", "measured", "num_tokens", "seconds"]]


def pooled_prediction(sets: pd.DataFrame) -> dict[str, float]:
    """The `predictions` of several sets as one: all tokens over all seconds, predicted and measured."""
    tokens = floats(sets["num_tokens"])
    return {
        "predicted": float(tokens.sum() / (tokens / floats(sets["predicted"])).sum()),
        "measured": float(tokens.sum() / floats(sets["seconds"]).sum()),
        "num_tokens": int(tokens.sum()),
        "seconds": float(floats(sets["seconds"]).sum()),
    }


def _ordered(choices: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """The choices of the method's counted answers as they were made."""
    own = arm(counted(samples), METHOD)[[*KEY, "started_at"]]
    return choices.merge(own, on=list(KEY)).sort_values(["started_at", "step"], kind="stable").reset_index(drop=True)
