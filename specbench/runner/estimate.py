"""About how long a run takes, from what earlier runs took on this machine, or those that come with the project."""

from __future__ import annotations

import functools
import logging

import pandas as pd

from specbench.config import RunConfig
from specbench.results.frozen import load_frozen
from specbench.results.schema import BASELINE, METHOD, empty_frame
from specbench.results.summary import load_samples

log = logging.getLogger(__name__)

WARM_UP_TOKENS = 32


class Estimator:
    """Seconds of a run by stored sample rows: of its method where there are any, else of AR on the same model.

    An answer is taken to be as long as it may be. A replayed one costs a pass over prompt and answer, by the target's
    speed; conversions and answers that have to be made first are not counted.
    """

    def __init__(self, rows: pd.DataFrame) -> None:
        self._rows = rows.dropna(subset=["decode_s", "prefill_s", "num_tokens"])  # failed and replayed rows

    def seconds(self, config: RunConfig, num_samples: int) -> float | None:
        """Seconds for `num_samples` conversations with their baseline and warm-up; None without rows of this model."""
        rows = self._rows
        if not len(rows):
            return None
        rows = rows[(rows["model"] == config.model.name) & (rows["dtype"] == config.hardware.dtype)]
        baseline = _nearest(rows[rows["arm"] == BASELINE], config)
        if config.measure.acceptance == "replay":
            return num_samples * _one_pass(baseline, config.answer_tokens) if len(baseline) else None
        method = rows[(rows["arm"] == METHOD) & (rows["method"] == config.method.name)]
        arms = [_nearest(method if len(method) else rows[rows["arm"] == BASELINE], config)]
        if config.measure.baseline == "paired":
            arms.append(baseline)
        if any(not len(arm) for arm in arms):
            return None
        tokens = config.answer_tokens
        passes = num_samples * config.measure.repeats
        warm_up = config.measure.warmup * sum(_conversation(arm, min(tokens, WARM_UP_TOKENS)) for arm in arms)
        return passes * sum(_conversation(arm, tokens) for arm in arms) + warm_up


def _nearest(rows: pd.DataFrame, config: RunConfig) -> pd.DataFrame:
    """The rows of the same task (an embedded set counts as its benchmark), or all where there are none."""
    same = rows[rows["task"].astype(str).str.removesuffix("_mini") == config.task.name]
    return same if len(same) else rows


def _conversation(rows: pd.DataFrame, max_new_tokens: int) -> float:
    per_token = rows["decode_s"].sum() / max(1, rows["num_tokens"].sum())
    return _turns(rows) * float(rows["prefill_s"].mean() + per_token * max_new_tokens)


def _one_pass(rows: pd.DataFrame, max_new_tokens: int) -> float:
    per_token = rows["prefill_s"].sum() / max(1, rows["prompt_tokens"].sum())
    return _turns(rows) * float(per_token * (rows["prompt_tokens"].mean() + max_new_tokens))


def _turns(rows: pd.DataFrame) -> float:
    """Of a conversation, in the mean."""
    return float(rows.groupby(["run_id", "sample_id"])["turn"].nunique().mean())


@functools.lru_cache(maxsize=1)
def estimator(results_dir: str) -> Estimator:
    """From the runs below `results_dir` as they are at the first call, and from the frozen ones."""
    known = [frame for frame in (load_samples(results_dir), load_frozen().samples) if len(frame)]
    return Estimator(pd.concat(known, ignore_index=True) if known else empty_frame("samples"))


def estimated_seconds(config: RunConfig, num_samples: int) -> float | None:
    """Seconds of a run of `num_samples` conversations; None where no earlier run tells. Never an error."""
    try:
        return estimator(config.paths.results_dir).seconds(config, num_samples)
    except Exception as error:  # a damaged folder must not stop a listing
        log.debug("no estimate: %s", error)
        return None
