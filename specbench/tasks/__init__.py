"""Benchmarks as lists of samples with a score; a task never sees a model.

To add one: write a module with `build(options: TaskOptions) -> Task` and name it in `_BUILDERS`.
"""

from __future__ import annotations

from pathlib import Path

from specbench.tasks import cnn_dm, gsm8k, humaneval, longdoc, mbpp, mt_bench, spec_bench
from specbench.tasks.base import TaskOptions, select
from specbench.types import ConfigError, Task

__all__ = ["TASK_NAMES", "build_task", "select"]

_BUILDERS = {
    "mt_bench": mt_bench.build,
    "gsm8k": gsm8k.build,
    "humaneval": humaneval.build,
    "mbpp": mbpp.build,
    "cnn_dm": cnn_dm.build,
    "spec_bench": spec_bench.build,
    "longdoc": longdoc.build,
}
TASK_NAMES: tuple[str, ...] = tuple(_BUILDERS)
# Where samples that no benchmark measures on are found, task by task.
_TRAIN_SOURCES = {"gsm8k": ("hub", "local"), "cnn_dm": ("hub", "embedded"), "mbpp": ("hub", "local")}
WITH_TRAIN_SPLIT = tuple(_TRAIN_SOURCES)


def build_task(
    name: str,
    *,
    source: str,
    data_dir: str | Path | None = None,
    style: str = "chat",
    execute_code: bool = False,
    context_tokens: int = 1024,
    history: str = "baseline",
    cache_dir: str | Path | None = None,
    split: str = "test",
) -> Task:
    """Build a task from `source` (hub, local or embedded); ConfigError for an illegal choice, DataError for bad data.

    `longdoc` is always made from the installed Python's own sources and has no other source. `context_tokens` is used
    by `longdoc` only, `execute_code` by `humaneval` and `mbpp` only. `split="train"` gives samples that the
    benchmark does not measure on, for tasks and sources that have some.
    """
    if name not in _BUILDERS:
        raise ConfigError(f"task={name}: legal values are {', '.join(TASK_NAMES)}")
    if split == "train" and source not in _TRAIN_SOURCES.get(name, ()):
        known = "; ".join(f"task={task} data={' or '.join(sources)}" for task, sources in _TRAIN_SOURCES.items())
        raise ConfigError(
            f"task={name} data={source}: no samples are held out from measuring; there are some for {known}"
        )
    options = TaskOptions(
        source=source,
        data_dir=None if data_dir is None else Path(data_dir),
        style=style,
        execute_code=execute_code,
        context_tokens=context_tokens,
        history=history,
        cache_dir=None if cache_dir is None else Path(cache_dir),
        split=split,
    )
    return _BUILDERS[name](options)
