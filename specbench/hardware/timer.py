"""Where the time of a decode goes: one named phase at a time, host time is the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType

PHASES = ("draft", "verify", "adapt")
HOST = "host"


def _nothing() -> None:
    return None


def device_synchronizer(device: str) -> Callable[[], None]:
    """A function that waits until all work queued on `device` is done; on a CPU it does nothing."""
    if not device.startswith("cuda"):
        return _nothing
    import torch

    return lambda: torch.cuda.synchronize(device)


class _Phase:
    # A class, entered again and again: a generator-based context manager costs three times as much per phase.
    __slots__ = ("_name", "_timer")

    def __init__(self, timer: PhaseTimer, name: str) -> None:
        self._timer = timer
        self._name = name

    def __enter__(self) -> None:
        self._timer._enter(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer._exit(self._name)


class PhaseTimer:
    """Seconds spent in each phase since the last lap; the first lap begins when the timer is made.

    `synchronize` runs at phase borders and at laps, so that queued device work is charged to the phase that
    queued it. Phases cannot be nested: that raises RuntimeError.
    """

    def __init__(
        self,
        phases: Sequence[str] = PHASES,
        *,
        clock: Callable[[], float] = time.perf_counter,
        synchronize: Callable[[], None] = _nothing,
    ) -> None:
        self._clock = clock
        self._synchronize = synchronize
        self._phases = {name: _Phase(self, name) for name in phases}
        self._open: str | None = None
        self._spent = dict.fromkeys(phases, 0.0)
        self._entered = 0.0
        self._lap_start = 0.0
        self.restart()

    def phase(self, name: str) -> _Phase:
        """The context manager whose body is charged to phase `name`; KeyError for an unknown name."""
        return self._phases[name]

    def restart(self) -> None:
        """Begin a new lap and forget what the current one has collected."""
        self.lap()

    def lap(self) -> dict[str, float]:
        """Seconds per phase since the last lap, and `host` = everything outside the phases."""
        if self._open is not None:
            raise RuntimeError(f"a lap cannot end inside phase {self._open!r}")
        self._synchronize()
        now = self._clock()
        spent = self._spent
        spent[HOST] = now - self._lap_start - sum(spent.values())
        self._spent = dict.fromkeys(self._phases, 0.0)
        self._lap_start = now
        return spent

    def _enter(self, name: str) -> None:
        if self._open is not None:
            raise RuntimeError(f"phase {name!r} was opened inside phase {self._open!r}")
        self._synchronize()
        self._open = name
        self._entered = self._clock()

    def _exit(self, name: str) -> None:
        self._synchronize()
        self._spent[name] += self._clock() - self._entered
        self._open = None
