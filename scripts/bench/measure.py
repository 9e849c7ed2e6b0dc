"""Timing in turns, figures with their limits, and what makes a figure untrustworthy."""

from __future__ import annotations

import dataclasses
import datetime
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specbench.hardware.lock import exclusive
from specbench.hardware.monitor import load_now

from . import QUIET

DRIFT = 0.10  # two halves of the same measurement that differ by more mark a figure noisy
_WINDOW = 0.5  # seconds over which load is read before and after a block

Samples = Mapping[str, Sequence[float]]
Medians = Mapping[str, float]


@dataclass(frozen=True)
class Bound:
    """A limit that a figure must keep: `sense` is >= or <= or <."""

    sense: str
    limit: float

    def holds(self, value: float) -> bool:
        if self.sense == ">=":
            return value >= self.limit
        return value < self.limit if self.sense == "<" else value <= self.limit


@dataclass(frozen=True)
class Figure:
    """One measured number; `required` None = printed for information only."""

    name: str
    value: float
    unit: str = ""
    required: Bound | None = None
    noisy: bool = False
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        return None if self.required is None else self.required.holds(self.value)


@dataclass(frozen=True)
class Block:
    """The figures that were measured together, and what else the machine did: mean foreign cores busy."""

    name: str
    figures: tuple[Figure, ...]
    seconds: float
    load: Mapping[str, float]  # before, during, after
    date: str

    @property
    def noisy(self) -> bool:
        return max(self.load.values()) > QUIET

    def as_json(self) -> dict[str, Any]:
        figures = [{**dataclasses.asdict(figure), "met": figure.met} for figure in self.figures]
        return {**dataclasses.asdict(self), "figures": figures, "noisy": self.noisy}


def run_block(name: str, measure: Callable[[], Sequence[Figure]], *, device: str = "cpu") -> Block:
    """Measure with the device held alone, and note the load of the machine around and during it."""
    with exclusive(device):
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        before = _load()
        start = time.perf_counter()
        figures = tuple(measure())
        seconds = time.perf_counter() - start
        during = load_now()
        return Block(name, figures, seconds, {"before": before, "during": during, "after": _load()}, date)


def _load() -> float:
    load_now()  # what was before the window does not count
    time.sleep(_WINDOW)
    return load_now()


def in_turns(actions: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Results of every action, taken in turns (every other round backwards) after one round that does not count."""
    for action in actions.values():
        action()
    samples: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(rounds):
        for name in list(actions)[:: 1 if number % 2 == 0 else -1]:
            samples[name].append(actions[name]())
    return samples


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def figure(
    name: str,
    samples: Samples,
    statistic: Callable[[Medians], float],
    *,
    unit: str = "",
    required: Bound | None = None,
    detail: Mapping[str, Any] | None = None,
) -> Figure:
    """`statistic` of the medians of all samples; noisy when the first and the second half of the rounds disagree."""
    halves = [statistic(_medians(half)) for half in _halves(samples)]
    value = statistic(_medians(samples))
    return Figure(name, value, unit, required, differ(*halves), detail or {})


def differ(first: float, second: float) -> bool:
    """Whether two readings of the same thing are too far apart to be trusted."""
    return abs(first - second) > DRIFT * min(abs(first), abs(second))


def halves_differ(values: Sequence[float]) -> bool:
    """Whether the medians of the first and the second half are too far apart; False below two values."""
    if len(values) < 2:
        return False
    first, second = _halves({"": values})
    return differ(statistics.median(first[""]), statistics.median(second[""]))


def _medians(samples: Samples) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in samples.items()}


def _halves(samples: Samples) -> tuple[Samples, Samples]:
    """First and second half of every list, the middle in both; a list of one is both its halves."""
    first = {name: values[: (len(values) + 1) // 2] for name, values in samples.items()}
    second = {name: values[len(values) // 2 :] for name, values in samples.items()}
    return first, second
