"""The latency curve: medians over interleaved rounds, checked by a second pass, cached by its key."""

import pytest

from specbench.hardware.profile import VerifyCurve, load_curve, seconds, store_curve, verify_curve


class Machine:
    """A fake forward pass: `cost(T, call number)` seconds on its own clock."""

    def __init__(self, cost) -> None:
        self.now = 0.0
        self.calls: list[int] = []
        self._cost = cost

    def step(self, length: int) -> None:
        self.calls.append(length)
        self.now += self._cost(length, len(self.calls))

    def curve(self, lengths=(1, 8, 64), repeats=3) -> VerifyCurve:
        return verify_curve(self.step, lengths, repeats=repeats, clock=lambda: self.now)


def test_a_quiet_machine_gives_its_costs():
    curve = Machine(lambda length, call: 1.0 + 0.1 * length).curve()
    assert curve.seconds == pytest.approx({1: 1.1, 8: 1.8, 64: 7.4})
    assert not curve.noisy


def test_the_lengths_take_turns():
    machine = Machine(lambda length, call: 1.0)
    machine.curve(repeats=2)
    assert machine.calls == [1, 8, 64] * 5  # warm-up, then two passes of two rounds


def test_one_outlier_does_not_move_the_median():
    curve = Machine(lambda length, call: 50.0 if call == 7 else 1.0).curve(repeats=5)
    assert curve.seconds == {1: 1.0, 8: 1.0, 64: 1.0}
    assert not curve.noisy


def test_a_pass_that_disagrees_is_repeated():
    machine = Machine(lambda length, call: 2.0 if call <= 3 + 9 else 1.0)  # the first pass was disturbed
    curve = machine.curve()
    assert curve == VerifyCurve({1: 1.0, 8: 1.0, 64: 1.0})
    assert len(machine.calls) == 3 + 3 * 9


def test_a_machine_that_never_settles_is_flagged_after_two_repeats():
    machine = Machine(lambda length, call: 1.5 ** ((call - 4) // 9))
    assert machine.curve().noisy
    assert len(machine.calls) == 3 + 4 * 9


def test_waiting_for_the_device_is_part_of_the_time():
    machine = Machine(lambda length, call: 0.0)

    def wait() -> None:
        machine.now += 0.5

    curve = verify_curve(machine.step, (1,), repeats=1, clock=lambda: machine.now, synchronize=wait)
    assert curve.seconds == {1: 0.5}


@pytest.mark.parametrize(("length", "expected"), [(1, 1.0), (3, 3.0), (5, 5.0), (7, 5.5), (9, 6.0), (13, 7.0)])
def test_seconds_between_and_beyond_the_measured_lengths(length, expected):
    assert seconds(VerifyCurve({1: 1.0, 5: 5.0, 9: 6.0}), length) == pytest.approx(expected)


def test_a_curve_with_one_point_is_flat():
    assert seconds(VerifyCurve({4: 2.0}), 100) == 2.0


def test_a_stored_curve_is_found_by_its_key_only(tmp_path):
    key = {"model": "m", "dtype": "bfloat16", "threads": 2}
    curve = VerifyCurve({1: 0.1, 128: 0.3}, noisy=True)
    store_curve(tmp_path / "cache", key, curve)
    assert load_curve(tmp_path / "cache", key) == curve
    assert load_curve(tmp_path / "cache", key | {"threads": 1}) is None
