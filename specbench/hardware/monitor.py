"""What else the machine is doing, and how much memory a sample took; read outside the timed regions."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from types import TracebackType

import psutil
import torch

log = logging.getLogger(__name__)

_PROC = Path("/proc/self")
_MIN_INTERVAL = 0.05  # seconds; a shorter window is mostly the kernel's 10 ms accounting tick


class LoadMeter:
    """Cores kept busy by OTHER processes between two readings (own and finished child processes taken out)."""

    def __init__(self) -> None:
        self._last = self._counters()

    def read(self) -> float:
        """Mean number of busy foreign cores since the last reading; waits up to 50 ms if that was just now."""
        time.sleep(max(0.0, _MIN_INTERVAL - (time.monotonic() - self._last[0])))
        now, before = self._counters(), self._last
        self._last = now
        foreign = (now[1] - before[1]) - (now[2] - before[2])
        return max(0.0, foreign / (now[0] - before[0]))

    @staticmethod
    def _counters() -> tuple[float, float, float]:
        machine = psutil.cpu_times()
        idle = machine.idle + getattr(machine, "iowait", 0.0)
        # guest time is part of user time already
        guest = getattr(machine, "guest", 0.0) + getattr(machine, "guest_nice", 0.0)
        own = os.times()
        return time.monotonic(), sum(machine) - idle - guest, sum(own[:4])


_meter: LoadMeter | None = None


def load_now() -> float:
    """Cores kept busy by other processes since the last call (on the first call: during the next 50 ms)."""
    global _meter
    if _meter is None:
        _meter = LoadMeter()
    return _meter.read()


def load_average() -> float | None:
    """The 1-minute load average of the machine; None where there is none."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


class PeakMemory:
    """Peak memory of the body in bytes, in `.bytes` afterwards.

    On a GPU: what torch's allocator held at most. On a CPU: the peak of resident memory that is not backed by a
    file (weights read through mmap are file pages until they are written). Linux keeps that peak itself and lets a
    process reset it; where this is not allowed, it is the larger of the readings before and after the body.
    """

    def __init__(self, device: str) -> None:
        self._cuda = device if device.startswith("cuda") else None
        self._before = 0
        self._reset = False
        self.bytes = 0

    def __enter__(self) -> PeakMemory:
        if self._cuda:
            torch.cuda.reset_peak_memory_stats(self._cuda)
        else:
            self._before = anonymous_bytes()
            self._reset = _reset_peak()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._cuda:
            self.bytes = torch.cuda.max_memory_allocated(self._cuda)
        elif self._reset:
            self.bytes = _anonymous_peak()
        else:
            self.bytes = max(self._before, anonymous_bytes())


def anonymous_bytes() -> int:
    """Resident memory of this process that is not backed by a file (all resident memory where the OS cannot tell)."""
    status = _status()
    return status["RssAnon"] if "RssAnon" in status else psutil.Process().memory_info().rss


def _anonymous_peak() -> int:
    status = _status()
    return status["VmHWM"] - status["RssFile"] - status["RssShmem"]


def _reset_peak() -> bool:
    try:
        (_PROC / "clear_refs").write_text("5")
        return "VmHWM" in _status() and "RssFile" in _status()
    except OSError:
        return False


def _status() -> dict[str, int]:
    """Memory lines of /proc/self/status in bytes; {} where there is no such file."""
    try:
        lines = (_PROC / "status").read_text().splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines if line.endswith(" kB"))
    return {name.rstrip(":"): int(size) * 1024 for name, size, _ in fields}
