"""What a run will do before any model is loaded: its samples, their order, and about how long it takes."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from specbench.config import RunConfig
from specbench.results.summary import load_samples
from specbench.tasks import build_task, select, spec_bench
from specbench.types import ConfigError, Sample, Task

log = logging.getLogger(__name__)


def make_task(config: RunConfig, split: str = "test") -> Task:
    """The task of a run with its data source; `split` train = samples that are not measured on."""
    return build_task(
        config.task.name,
        source=config.data.source,
        data_dir=config.data.dir,
        style=config.task.style,
        execute_code=config.task.execute_code,
        context_tokens=config.task.context_tokens,
        history=config.task.history,
        cache_dir=Path(config.paths.cache_dir).expanduser(),
        split=split,
    )


def ordered_samples(config: RunConfig, task: Task) -> list[Sample]:
    """The chosen samples: in file order, or shuffled by the seed where what is learnt outlives a sample.

    With `method.scope=task` the subsets of spec_bench stay together, because learning ends with each.
    """
    samples = select(task.samples(), config.num_samples)
    if not samples:
        raise ConfigError(f"task={config.task.name} has no samples for data={config.data.source}")
    if config.method.scope != "sample":
        random.Random(config.seed).shuffle(samples)
    if config.method.scope == "task":
        samples.sort(key=lambda sample: subset(config, sample))
    return samples


def subset(config: RunConfig, sample: Sample) -> str:
    """The task that a sample belongs to: spec_bench is six tasks in one, every other task is one."""
    return spec_bench.subset(sample.category) if config.task.name == "spec_bench" else config.task.name


def estimated_seconds(config: RunConfig, num_samples: int) -> float | None:
    """Seconds for `num_samples`, from stored runs of this model, task and dtype; None without any.

    Tokens are assumed to be as many as allowed, at the stored seconds a token of both arms together.
    """
    root = Path(config.paths.results_dir)
    try:
        rows = load_samples(root)
    except Exception as error:  # an estimate must not stop a listing
        log.debug("no estimate: %s", error)
        return None
    rows = rows[(rows["model"] == config.model.name) & (rows["dtype"] == config.hardware.dtype)]
    same_task = rows[rows["task"].astype(str).str.startswith(config.task.name)]
    rows = (same_task if len(same_task) else rows).dropna(subset=["decode_s", "num_tokens"])
    if not len(rows):
        return None
    return _per_turn(rows, config.sampling.max_new_tokens or 1) * num_samples * config.measure.repeats


def _per_turn(rows: pd.DataFrame, max_new_tokens: int) -> float:
    per_token = rows["decode_s"].sum() / rows["num_tokens"].sum()
    arms = rows["arm"].nunique()
    turns = rows.groupby("sample_id")["turn"].nunique().mean()
    return float(turns * arms * (rows["prefill_s"].mean() + per_token * max_new_tokens))


def describe(config: RunConfig, samples: Sequence[Sample], name: str) -> str:
    """One line of a dry run: what would be decoded and about how long it takes."""
    seconds = estimated_seconds(config, len(samples))
    estimate = "no earlier run to estimate the time from" if seconds is None else f"about {duration(seconds)}"
    turns = sum(len(sample.turns) for sample in samples)
    return f"{name}: {len(samples)} samples, {turns} turns, {estimate}"


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
