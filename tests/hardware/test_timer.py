"""Phases, laps and host time, with a clock that only moves when told."""

import time

import pytest

from specbench.hardware.timer import PhaseTimer, device_synchronizer


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def pass_seconds(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_phases_add_up_and_the_rest_is_host(clock):
    timer = PhaseTimer(clock=clock)
    for _ in range(2):
        clock.pass_seconds(0.5)
        with timer.phase("draft"):
            clock.pass_seconds(1.0)
        with timer.phase("verify"):
            clock.pass_seconds(4.0)
    assert timer.lap() == {"draft": 2.0, "verify": 8.0, "adapt": 0.0, "host": 1.0}


def test_a_lap_starts_where_the_last_one_ended(clock):
    timer = PhaseTimer(clock=clock)
    with timer.phase("adapt"):
        clock.pass_seconds(3.0)
    first = timer.lap()
    clock.pass_seconds(0.25)
    assert first["adapt"] == 3.0
    assert timer.lap() == {"draft": 0.0, "verify": 0.0, "adapt": 0.0, "host": 0.25}


def test_restart_forgets_what_was_collected(clock):
    timer = PhaseTimer(("a",), clock=clock)
    with timer.phase("a"):
        clock.pass_seconds(1.0)
    timer.restart()
    assert timer.lap() == {"a": 0.0, "host": 0.0}


def test_nested_phases_are_an_error(clock):
    timer = PhaseTimer(clock=clock)
    with timer.phase("draft"), pytest.raises(RuntimeError, match=r"'verify'.*'draft'"), timer.phase("verify"):
        pass


def test_a_lap_inside_a_phase_is_an_error(clock):
    timer = PhaseTimer(clock=clock)
    with timer.phase("draft"), pytest.raises(RuntimeError, match="draft"):
        timer.lap()


def test_an_exception_closes_its_phase(clock):
    timer = PhaseTimer(clock=clock)

    def fail() -> None:
        with timer.phase("draft"):
            clock.pass_seconds(1.0)
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 (the type is all there is)
        fail()
    with timer.phase("verify"):
        clock.pass_seconds(2.0)
    assert timer.lap() == {"draft": 1.0, "verify": 2.0, "adapt": 0.0, "host": 0.0}


def test_queued_device_work_is_charged_to_the_phase_that_queued_it(clock):
    queued = [0.0]

    def wait() -> None:
        clock.pass_seconds(queued[0])
        queued[0] = 0.0

    timer = PhaseTimer(clock=clock, synchronize=wait)
    queued[0] = 1.0  # host work
    with timer.phase("draft"):
        queued[0] = 2.0
    with timer.phase("verify"):
        queued[0] = 4.0
    queued[0] = 8.0
    assert timer.lap() == {"draft": 2.0, "verify": 4.0, "adapt": 0.0, "host": 9.0}


def test_an_unknown_phase_is_refused():
    with pytest.raises(KeyError):
        PhaseTimer().phase("verfy")


def test_a_phase_is_cheap():
    timer = PhaseTimer(synchronize=device_synchronizer("cpu"))

    def seconds_per_phase() -> float:
        start = time.perf_counter()
        for _ in range(2000):
            with timer.phase("draft"):
                pass
        return (time.perf_counter() - start) / 2000

    assert min(seconds_per_phase() for _ in range(20)) < 3e-6
