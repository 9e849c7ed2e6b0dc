"""When KnapSpec collects states, searches and gives up: schedules, rows, and what time was spent on."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

import torch
from torch import Tensor

from specbench.methods.knapsack import Window

_PLAIN_STEPS = 32  # steps of plain decoding whose median is compared with


class Schedule(Protocol):
    """Says when states are collected and when a search is due."""

    @property
    def rows(self) -> int | None:
        """Most rows of a window (None = all that were collected)."""

    def begin(self) -> None:
        """A prompt starts."""

    def reset(self) -> None:
        """Forget what was decided."""

    def collects(self, step: int, emitted: int) -> bool:
        """Whether the verify pass of this step is to be looked at; `emitted` tokens came before it."""

    def due(self, step: int, emitted: int, rows: int) -> bool:
        """Whether a search comes after this step; `emitted` counts its tokens."""

    def decided(self, emitted: int, *, plain: bool) -> None:
        """A search, or the guard, chose plain decoding or a set."""


@dataclass
class StepSchedule:
    """As published: counted in steps, over the rows of `accumulate` steps; step 0 stands for the prefill."""

    interval: int
    accumulate: int
    rows: int | None = None

    def begin(self) -> None:
        return None

    def reset(self) -> None:
        return None

    def collects(self, step: int, emitted: int) -> bool:
        return 1 < step % self.interval <= 1 + self.accumulate

    def due(self, step: int, emitted: int, rows: int) -> bool:
        return step % self.interval == 1 + self.accumulate

    def decided(self, emitted: int, *, plain: bool) -> None:
        return None


@dataclass
class TokenSchedule:
    """Counted in tokens: the first search after `window` rows, the next after `interval` more tokens.

    With `doubling` the interval doubles each time plain decoding wins, and is as before once a set wins.
    """

    window: int
    interval: int
    doubling: bool = True
    _next: int = field(init=False, default=0)
    _current: int | None = field(init=False, default=None)  # None = nothing was decided yet

    @property
    def rows(self) -> int:
        return self.window

    def begin(self) -> None:
        self._next = max(self.window, self._current or 0)

    def reset(self) -> None:
        self._current = None

    def collects(self, step: int, emitted: int) -> bool:
        return emitted >= self._next - self.window

    def due(self, step: int, emitted: int, rows: int) -> bool:
        return emitted >= self._next and rows >= self.window

    def decided(self, emitted: int, *, plain: bool) -> None:
        doubled = 2 * (self._current or self.interval)
        self._current = doubled if plain and self.doubling else self.interval
        self._next = emitted + self._current


@dataclass
class Rows:
    """States of the last verified positions, collected from verify passes; nothing of a pass but these is kept."""

    most: int | None = None
    _parts: deque[Tensor] = field(init=False, default_factory=deque)
    _count: int = field(init=False, default=0)

    def __len__(self) -> int:
        return self._count

    def add(self, residuals: Mapping[int, Tensor], count: int) -> None:
        """The first `count` rows of a pass: those that stay in the cache."""
        states = [state[:count] for _, state in sorted(residuals.items())]
        self._parts.append(torch.stack(states))
        self._count += count
        while self.most is not None and self._count - self._parts[0].shape[1] >= self.most:
            self._count -= self._parts.popleft().shape[1]

    def window(self, length: int) -> Window:
        """The rows as the last ones before cache slot `length`."""
        states = torch.cat(list(self._parts), dim=1)
        whole = Window(states, length - states.shape[1])
        return whole if self.most is None else whole.last(self.most)

    def clear(self) -> None:
        self._parts.clear()
        self._count = 0


@dataclass
class Pace:
    """Seconds of plain steps, and tokens and seconds of the last steps that drafted with the present set."""

    tokens: int  # drafting steps are compared once they have emitted so many
    _plain: deque[float] = field(init=False, default_factory=lambda: deque(maxlen=_PLAIN_STEPS))
    _drafting: deque[tuple[int, float]] = field(init=False, default_factory=deque)

    def add(self, *, drafted: bool, emitted: int, seconds: float) -> None:
        if not drafted:
            self._plain.append(seconds)
            return
        self._drafting.append((emitted, seconds))
        while sum(count for count, _ in self._drafting) - self._drafting[0][0] >= self.tokens:
            self._drafting.popleft()

    def restart(self) -> None:
        """Another set drafts from now on."""
        self._drafting.clear()

    def gain(self, plain_s: float) -> float | None:
        """Tokens per second while drafting over those of plain steps (`plain_s` a token where none was seen)."""
        emitted = sum(count for count, _ in self._drafting)
        if emitted < self.tokens:
            return None
        plain = median(self._plain) if self._plain else plain_s
        return emitted / sum(seconds for _, seconds in self._drafting) * plain


@dataclass
class Budget:
    """Keeps the seconds of searches below a share of all seconds (None = no limit)."""

    share: float | None
    decoding: float = 0.0
    searching: float = 0.0

    def allows(self, seconds: float) -> bool:
        """Whether a search of so many seconds would still be within the share."""
        if self.share is None:
            return True
        after = self.searching + seconds
        return after <= self.share * (self.decoding + after)
