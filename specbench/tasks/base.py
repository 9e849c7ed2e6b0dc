"""What every task shares: its options, the one Task implementation, and how a few samples are picked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.types import ConfigError, Sample

SOURCES = ("hub", "local", "embedded")
STYLES = ("chat", "completion")
HISTORIES = ("baseline", "own")
SPLITS = ("test", "train")
CONTEXT_TOKENS = (128, 32768)  # smallest and largest prompt of `longdoc`

Score = Callable[[Sample, Sequence[str]], dict[str, float]]


@dataclass(frozen=True)
class TaskOptions:
    """The choices of the `task` and `data` groups that a task module may look at."""

    source: str
    data_dir: Path | None = None
    style: str = "chat"
    execute_code: bool = False
    context_tokens: int = 1024
    history: str = "baseline"
    cache_dir: Path | None = None
    split: str = "test"  # train: what no benchmark measures on, to search or to fit with

    def __post_init__(self) -> None:
        _check("data", self.source, SOURCES)
        _check("task.style", self.style, STYLES)
        _check("task.history", self.history, HISTORIES)
        _check("split", self.split, SPLITS)
        low, high = CONTEXT_TOKENS
        if not low <= self.context_tokens <= high:
            raise ConfigError(f"task.context_tokens={self.context_tokens}: legal values are {low} to {high}")

    def only_chat(self, task: str) -> None:
        """Refuse `task.style=completion` for a task that has no completion prompt (ConfigError)."""
        if self.style != "chat":
            raise ConfigError(f"task.style={self.style}: task {task} has only style=chat (completion is for humaneval)")

    def named(self, task: str) -> str:
        """The name that tables show: an embedded set is not the published one and says so."""
        return f"{task}_mini" if self.source == "embedded" else task


@dataclass
class SampleTask:
    """A list of samples with a score function; implements the Task protocol."""

    name: str
    default_max_new_tokens: int
    score_names: tuple[str, ...]
    items: tuple[Sample, ...]
    scorer: Score
    history: str = "baseline"  # whose earlier answers a later turn sees: AR's, or the method's own

    def samples(self) -> tuple[Sample, ...]:
        """All samples of the chosen source, in file order."""
        return self.items

    def score(self, sample: Sample, answers: Sequence[str]) -> dict[str, float]:
        """Scores of one conversation (`answers`: one text a turn), each in [0, 1]; {} when none is defined."""
        return self.scorer(sample, answers)


def no_score(sample: Sample, answers: Sequence[str]) -> dict[str, float]:
    """The score of a task that has none."""
    return {}


def select(samples: Sequence[Sample], num_samples: int | None) -> list[Sample]:
    """Pick `num_samples` samples evenly spaced over the file, in file order (index floor(i * len / n)).

    Evenly spaced, so that a few samples still cover every category of a file sorted by category. None, or more than
    there are, means all of them.
    """
    if num_samples is not None and num_samples < 1:
        raise ConfigError(f"num_samples={num_samples}: must be a positive number, or null for all samples")
    if num_samples is None or num_samples >= len(samples):
        return list(samples)
    return [samples[i * len(samples) // num_samples] for i in range(num_samples)]


def _check(key: str, value: str, legal: Sequence[str]) -> None:
    if value not in legal:
        raise ConfigError(f"{key}={value}: legal values are {', '.join(legal)}")
