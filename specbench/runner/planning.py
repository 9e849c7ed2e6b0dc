"""What a run will do before any model is loaded: its samples and their order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from specbench.config import RunConfig
from specbench.tasks import build_task, select, spec_bench
from specbench.types import ConfigError, Sample, Task


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


def describe(samples: Sequence[Sample], name: str, seconds: float | None, *, done: int = 0) -> str:
    """One line of a dry run: what would be decoded beside what is `done`, and about how many seconds it takes."""
    estimate = "no earlier run to estimate the time from" if seconds is None else f"about {duration(seconds)}"
    turns = sum(len(sample.turns) for sample in samples)
    count = f"{len(samples)} of {len(samples) + done} samples left" if done else f"{len(samples)} samples"
    return f"{name}: {count}, {turns} turns, {estimate}"


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
