"""Foreign load and peak memory."""

import mmap
import os
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from specbench.hardware import monitor
from specbench.hardware.monitor import LoadMeter, PeakMemory, anonymous_bytes, load_now

MEGABYTE = 1_000_000


def touched(size: int) -> mmap.mmap:
    """Fresh memory of `size` bytes, all of it used: an allocator might hand out what it was given back before."""
    area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    np.frombuffer(area, dtype=np.uint8)[:: mmap.PAGESIZE] = 1
    return area


@pytest.fixture
def machine(monkeypatch):
    """Fake counters: set seconds of wall, all busy cores together, and this process."""
    state = SimpleNamespace(wall=0.0, busy=0.0, own=0.0)
    cpu_times = type(psutil.cpu_times())
    width = len(cpu_times._fields)

    def times():
        return cpu_times(**dict(zip(cpu_times._fields, [state.busy] + [0.0] * (width - 1), strict=True)))

    monkeypatch.setattr(psutil, "cpu_times", times)
    monkeypatch.setattr(os, "times", lambda: (state.own, 0.0, 0.0, 0.0, state.wall))
    monkeypatch.setattr(monitor.time, "monotonic", lambda: state.wall)
    return state


def test_own_work_is_not_load(machine):
    meter = LoadMeter()
    machine.wall, machine.busy, machine.own = 10.0, 20.0, 20.0
    assert meter.read() == 0.0


def test_foreign_work_is_counted_in_cores_since_the_last_reading(machine):
    meter = LoadMeter()
    machine.wall, machine.busy, machine.own = 10.0, 35.0, 20.0
    assert meter.read() == pytest.approx(1.5)
    machine.wall, machine.busy, machine.own = 20.0, 35.0, 20.0
    assert meter.read() == 0.0


def test_load_of_this_machine_is_a_number_of_cores():
    assert 0.0 <= load_now() <= (os.cpu_count() or 1) + 1


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak cannot be reset here")
def test_a_peak_inside_the_body_is_seen_and_the_next_body_starts_anew():
    base = anonymous_bytes()
    with PeakMemory("cpu") as large:
        touched(100 * MEGABYTE).close()
    with PeakMemory("cpu") as small:
        pass
    assert large.bytes - base > 80 * MEGABYTE
    assert small.bytes - base < 40 * MEGABYTE


def test_where_the_peak_cannot_be_reset_memory_that_stays_is_seen(monkeypatch, tmp_path):
    monkeypatch.setattr(monitor, "_PROC", tmp_path)
    base = psutil.Process().memory_info().rss
    with PeakMemory("cpu") as peak:
        kept = touched(100 * MEGABYTE)
    assert peak.bytes - base > 80 * MEGABYTE
    kept.close()
