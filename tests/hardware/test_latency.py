"""The latency model: fitted to whole passes, never non-positive, checked by a second pass, cached by its key."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specbench.hardware.latency import (
    Kind,
    LatencyModel,
    ProfilePlan,
    describe,
    fit,
    interleaved,
    latency_record,
    load_latency,
    store_latency,
)

LAYERS = 6
PLAN = ProfilePlan(lengths=(100, 400, 800), warmup=2, repeats=3)
TRUE = LatencyModel(attention_slope=2e-6, attention_base=3e-4, mlp=5e-4, head=2e-3, fixed=1e-3)


def cost(kind: Kind, model: LatencyModel = TRUE) -> float:
    sublayers = kind.attention * model.attention(kind.context) + kind.mlp * model.mlp
    return sublayers + model.head * kind.head + model.fixed


def test_parts_are_recovered_from_whole_passes() -> None:
    model = fit({kind: cost(kind) for kind in PLAN.kinds(LAYERS)}, LAYERS)
    assert model.attention(250) == pytest.approx(TRUE.attention(250), rel=1e-6)
    assert (model.mlp, model.head, model.fixed) == pytest.approx((TRUE.mlp, TRUE.head, TRUE.fixed), rel=1e-6)
    assert model.full(800, LAYERS) == pytest.approx(cost(Kind(800, LAYERS, LAYERS)))


def test_no_part_is_ever_free_or_negative() -> None:
    """Times that fall with context, as noise may have it: attention still costs something at any length."""
    kinds = PLAN.kinds(LAYERS)
    falling = {kind: 1e-3 - 1e-7 * kind.context * (kind.attention > 0) for kind in kinds}
    model = fit(falling, LAYERS)
    for context in (0, 1, 100, 100_000):
        assert model.attention(context) > 0
        assert model.attention(context) <= model.attention(context + 1)
    assert model.mlp > 0


@pytest.mark.parametrize("context", [0, 10, 99])
def test_a_line_below_zero_at_short_contexts_is_held_above_it(context: int) -> None:
    model = LatencyModel(attention_slope=0.01, attention_base=-1.0, mlp=-2.0)
    assert model.attention(context) > 0
    assert model.mlp > 0
    assert model.attention(200) == pytest.approx(1.0)


def test_lengths_stay_within_what_the_model_holds() -> None:
    assert ProfilePlan(lengths=(128, 512, 4096)).within(2048).lengths == (128, 512, 1984)
    assert ProfilePlan(lengths=(128, 512)).within(128).lengths == (32, 64)
    assert ProfilePlan(lengths=(128, 512)).within(100_000).lengths == (128, 512)


class Machine:
    """Callables that take a while on a clock of their own; the n-th call of all may be slower."""

    def __init__(self, slow: Callable[[int], float] = lambda call: 1.0) -> None:
        self.now, self.calls, self.slow, self.order = 0.0, 0, slow, []

    def step(self, name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.calls += 1
            self.order.append(name)
            self.now += seconds * self.slow(self.calls)

        return run

    def measure(self, load: float = 0.0) -> tuple[dict[str, float], bool]:
        steps = {"a": self.step("a", 1.0), "b": self.step("b", 2.0)}
        return interleaved(steps, PLAN, clock=lambda: self.now, load=lambda: load)


def test_kinds_take_turns_after_a_warm_up() -> None:
    machine = Machine()
    assert machine.measure() == ({"a": 1.0, "b": 2.0}, False)
    assert machine.order == ["a", "a", "b", "b"] + ["a", "b"] * 6


def test_one_slow_call_does_not_move_a_median() -> None:
    assert Machine(lambda call: 9.0 if call == 7 else 1.0).measure() == ({"a": 1.0, "b": 2.0}, False)


def test_a_pass_that_disagrees_is_repeated() -> None:
    machine = Machine(lambda call: 2.0 if call <= 10 else 1.0)  # the warm-up and the first pass
    assert machine.measure() == ({"a": 1.0, "b": 2.0}, False)
    assert machine.calls == 4 + 3 * 6


def test_a_machine_that_never_settles_is_flagged() -> None:
    machine = Machine(lambda call: 1.5 ** ((call - 5) // 6))
    _, noisy = machine.measure()
    assert noisy
    assert machine.calls == 4 + 4 * 6


def test_a_machine_that_others_use_is_flagged() -> None:
    machine = Machine()
    _, noisy = machine.measure(load=1.2)
    assert noisy
    assert machine.calls == 4 + 4 * 6


def test_a_stored_model_is_found_by_its_key_only(tmp_path) -> None:
    key = {"model": "m", "threads": 2, "plan": {"lengths": (1, 2)}}
    store_latency(tmp_path / "curves", key, TRUE, {Kind(100, 6, 6): 0.5, "head": 0.1})
    assert load_latency(tmp_path / "curves", key) == TRUE
    assert load_latency(tmp_path / "curves", key | {"threads": 1}) is None


def test_a_run_keeps_every_timed_pass_beside_what_the_model_says(tmp_path) -> None:
    kinds = PLAN.kinds(LAYERS)
    times = {**{kind: 1.1 * cost(kind) for kind in kinds}, ("rows", 0, 100): 0.1, "head": 0.1}
    store_latency(tmp_path, {"model": "m"}, TRUE, times)
    record = latency_record(tmp_path, {"model": "m"})
    assert record is not None
    assert [entry["context"] for entry in record["passes"]] == [kind.context for kind in kinds]
    assert all(entry["seconds"] == pytest.approx(1.1 * entry["fitted_s"]) for entry in record["passes"])
    assert record["passes"][0]["attention_s"] == TRUE.attention(100)
    assert latency_record(tmp_path, {"model": "other"}) is None


def test_people_are_told_when_it_was_noisy() -> None:
    assert "NOISY" not in describe(TRUE, (100,), LAYERS)
    noisy = LatencyModel(attention_slope=0.0, attention_base=1e-3, mlp=1e-3, noisy=True)
    assert "NOISY" in describe(noisy, (100,), LAYERS)
    assert "100: 12.00 ms" in describe(noisy, (100,), LAYERS)
