"""KnapSpec in the loop: AR's tokens whatever is skipped, honest windows, planned lengths, guard, budget, state."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from specbench.decoding.target import Target
from specbench.hardware.latency import LatencyModel
from specbench.hardware.profile import VerifyCurve
from specbench.methods.build import Parts, build_generator
from specbench.methods.knapsack import Window
from specbench.methods.knapspec import KnapSpec
from specbench.methods.knapspec_search import Decision
from specbench.methods.layer_skip import LayerSkipDrafter
from specbench.methods.skip_sets import store_set
from specbench.models.tiny import SPEC
from specbench.types import ConfigError, Generation, Sampling
from tests.composed import composed
from tests.decoding.tinies import PROMPT, ar_tokens, check_every_step, tiny_target

LATENCY = LatencyModel(attention_slope=1e-6, attention_base=1e-3, mlp=1e-3, head=1e-4, fixed=1e-4)
CURVE = VerifyCurve({1: 0.0122, 16: 0.0130})
QUICK = ("method.window_tokens=8", "method.interval_tokens=16", "method.search_budget=null", "method.guard=none")
COUNT = 72
OUTER = {0, 1, 2 * SPEC.num_layers - 2, 2 * SPEC.num_layers - 1}


def build(*overrides: str, method: str = "knapspec", sampling: Sampling | None = None, **parts: Any) -> Any:
    config = composed("model=tiny", f"method={method}", *overrides).method
    given = {"curve": lambda: CURVE, "latency": lambda plan: LATENCY} | parts
    return build_generator(config, Parts(target=Target(tiny_target()), sampling=sampling or Sampling(), **given))


def generate(generator: Any, count: int = COUNT, **changes: Any) -> Generation:
    return generator.generate(**({"prompt": PROMPT, "max_new_tokens": count, "seed": 0} | changes))


@functools.cache
def ours() -> Generation:
    return generate(check_every_step(build(*QUICK)))


# ---- tokens


@pytest.mark.parametrize("seed", range(6))
def test_any_skip_set_gives_ars_tokens(seed: int) -> None:
    draws = random.Random(seed)
    skip = [index for index in range(2 * SPEC.num_layers) if draws.random() < draws.choice((0.2, 0.5, 0.8))]
    found = generate(check_every_step(build(f"method.skip_set={skip}")), 24)
    assert found.tokens == ar_tokens(24)
    assert sum(step.num_draft_tokens or 0 for step in found.steps or ()) > 0


def test_searching_gives_ars_tokens_and_drafts_that_are_right() -> None:
    assert ours().tokens == ar_tokens(COUNT)
    assert sum(step.num_accepted for step in ours().steps or ()) > 10


def test_skipped_attention_writes_no_rows() -> None:
    generator = build("method.skip_set=[2,5,6]")
    generate(generator, 6)
    target = generator.target
    with torch.inference_mode():
        for layer in target.cache.layers:
            layer["k"][:, target.cache.length :] = 7.0
        generator.drafter.propose(4)
    written = [bool((layer["k"][:, target.cache.length] != 7.0).any()) for layer in target.cache.layers]
    assert written == [index not in (1, 3) for index in range(SPEC.num_layers)]


# ---- ours: plain steps, a window, a search


def test_nothing_is_drafted_until_the_window_is_full() -> None:
    steps, first = ours().steps or (), ours().choices[0]
    assert first.step == 7
    assert [step.num_draft_tokens for step in steps[:8]] == [0] * 8
    assert first.values["reason"] == "search"
    assert first.values["rows"] == 8


def test_sets_keep_the_outer_layers_and_say_why_they_were_chosen() -> None:
    installed = [choice.values for choice in ours().choices if choice.values["sublayers"] is not None]
    assert installed
    for values in installed:
        assert not OUTER & set(values["sublayers"])
        assert values["predicted_tokens_per_second"] >= 1.05 * values["plain_tokens_per_second"]
        assert values["num_attention_skipped"] + values["num_mlp_skipped"] == len(values["sublayers"])
        assert 0.0 < values["predicted_acceptance"] < 1.0  # a bound, even where every row agreed
        assert values["search_s"] > 0


def test_drafts_are_as_long_as_planned_and_never_beyond_the_answer() -> None:
    plan, left = None, COUNT
    planned = {choice.step: choice.values for choice in ours().choices}
    for step in ours().steps or ():
        most = 0 if plan is None else plan
        assert (step.num_draft_tokens or 0) <= min(most, 10, left - 1)
        left -= step.num_emitted
        if step.step in planned:
            values = planned[step.step]
            plan = None if values["sublayers"] is None else values["planned_length"]
    assert any(step.num_draft_tokens for step in ours().steps or ())


def watch_windows(generator: Any) -> list[tuple[Window, int]]:
    """Every window that is searched from now on, with the cache's length at that moment."""
    seen: list[tuple[Window, int]] = []
    drafter = generator.drafter
    search = drafter.optimiser

    def spy(cache: Any, window: Window, effort: Any) -> Decision:
        seen.append((window, cache.length))
        return search(cache, window, effort)  # type: ignore[no-any-return]

    drafter.optimiser = _Spy(search, spy)
    return seen


class _Spy:
    """The optimiser with another call."""

    def __init__(self, optimiser: Any, call: Any) -> None:
        self._optimiser, self._call = optimiser, call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimiser, name)

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)


@pytest.mark.parametrize("method", ["knapspec", "knapspec_official"])
def test_the_window_is_the_last_verified_positions(method: str) -> None:
    overrides = QUICK if method == "knapspec" else ("method.optimize_interval=9", "method.latency=[1.0,0.001,1.0]")
    generator = build(*overrides, method=method)
    seen = watch_windows(generator)
    found = generate(generator)
    text = torch.tensor([[*PROMPT, *found.tokens]])
    taps = tuple(range(1, 2 * SPEC.num_layers))
    with torch.inference_mode():
        from specbench.models.decoder import Taps

        whole = tiny_target().forward(text, taps=Taps(taps), logits="none")
    assert len(seen) >= 2
    sizes = [step.num_emitted for step in found.steps or ()]
    for (window, length), choice in zip(seen, found.choices, strict=True):
        assert window.start + window.rows == length
        emitted = 8 if method == "knapspec" else sum(sizes[choice.step - 4 : choice.step + 1])
        assert window.rows == emitted
        for index in taps:
            expected = whole.residuals[index][0, window.start : length]
            assert torch.allclose(window.after(index), expected, atol=1e-3)


# ---- choosing


def decide(**changes: Any) -> dict[str, Any]:
    """What the first search says when the model's latency or the options are changed."""
    overrides = [f"method.{key}={value}" for key, value in changes.items() if key not in ("latency", "curve")]
    parts = {key: (lambda *_, value=changes[key]: value) for key in ("latency", "curve") if key in changes}
    found = generate(build(*QUICK, *overrides, **parts), 20)
    return dict(found.choices[0].values)


def test_a_pass_that_costs_mostly_head_is_not_drafted_for() -> None:
    values = decide(latency=replace(LATENCY, head=0.5))
    assert values["reason"] == "plain_wins"
    assert values["sublayers"] is None


def test_verifying_that_costs_by_the_row_is_not_drafted_for() -> None:
    assert decide(curve=VerifyCurve({1: 0.0122, 2: 0.0244, 16: 0.2}))["reason"] == "plain_wins"


def test_a_demanded_gain_that_nothing_reaches_means_plain_decoding() -> None:
    assert decide(min_gain=9.0)["reason"] == "plain_wins"


def test_a_threshold_that_nothing_reaches_means_plain_decoding() -> None:
    values = decide(sim_threshold=1.0)
    assert values["sublayers"] is None


def test_plain_decoding_is_a_draft_length_of_zero() -> None:
    """No candidate but the whole model: as fast as plain decoding at any length, so the shortest."""
    values = decide(skip_weight_budget=0.0, min_gain=0.0, cost_model="paper")
    assert (values["reason"], values["planned_length"], values["chosen"]) == ("plain_wins", 0, 0)


def test_weights_follow_the_latencies() -> None:
    dear = decide(latency=replace(LATENCY, attention_base=5e-3), min_gain=0.0)
    cheap = decide(latency=replace(LATENCY, attention_base=1e-4), min_gain=0.0)
    assert (dear["attention_weight"], dear["mlp_weight"]) == (5, 1)
    assert (cheap["attention_weight"], cheap["mlp_weight"]) == (1, 5)


# ---- guard and budget, on clocks of their own


class Clock:
    """Seconds that pass by the calls: the loop asks once at each end of a step."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self.now, self._seconds = 0.0, list(seconds)

    def __call__(self) -> float:
        self.now += self._seconds.pop(0) if self._seconds else 0.0
        return self.now


def guarded(step_seconds: float) -> KnapSpec:
    """A drafter for which a plain step takes 1 s and a drafting one `step_seconds`."""
    generator = build(*QUICK, "method.guard=measured", "method.guard_tokens=6")
    drafter = generator.drafter
    plain = drafter._step_seconds
    drafter._step_seconds = lambda: None if plain() is None else (step_seconds if drafter._drafted else 1.0)
    generate(generator)
    return drafter  # type: ignore[no-any-return]


def test_drafting_that_turns_out_slower_ends_until_the_next_search() -> None:
    reasons = [choice.values["reason"] for choice in guarded(50.0).choices()]
    assert reasons[:2] == ["search", "guard"]
    values = guarded(50.0).choices()[1].values
    assert values["sublayers"] is None
    assert 0.0 < values["measured_gain"] < 1.0
    assert 0.0 <= values["measured_acceptance"] <= 1.0


def test_drafting_that_is_faster_goes_on() -> None:
    assert "guard" not in [choice.values["reason"] for choice in guarded(0.01).choices()]


def test_a_search_waits_until_there_is_time_for_a_thin_one() -> None:
    dear = replace(LATENCY, attention_row_base=3e-3, mlp_row=3e-3, head_row=3e-3)
    generator = build(*QUICK[:2], "method.guard=none", "method.search_budget=0.5", latency=lambda plan: dear)
    drafter = generator.drafter
    drafter._step_seconds = lambda: 0.02
    found = generate(generator)
    assert found.tokens == ar_tokens(COUNT)
    first = found.choices[0]
    assert first.step > 7  # when it was due
    assert first.values["max_branches"] is not None
    assert first.values["predicted_search_s"] <= 0.5 * (drafter.budget.decoding + first.values["predicted_search_s"])


def test_no_time_at_all_means_no_search() -> None:
    dear = replace(LATENCY, mlp_row=1e3)
    generator = build(*QUICK[:2], "method.search_budget=0.04", latency=lambda plan: dear)
    assert generate(generator).choices == ()


def test_a_seed_gives_the_same_answer_whatever_the_clock_says() -> None:
    sampling = Sampling(temperature=0.9, top_k=20)
    answers = []
    for seconds in (1e-6, 1e3):
        generator = build("method.window_tokens=8", "method.guard_tokens=4", sampling=sampling)
        generator.drafter.clock = Clock([seconds] * 10_000)
        answers.append(generate(generator).tokens)
    assert answers[0] == answers[1]


# ---- the published behaviour


def official(*overrides: str) -> Any:
    return build("method.optimize_interval=9", "method.latency=[1.0,0.001,1.0]", *overrides, method="knapspec_official")


def test_the_published_code_drafts_with_the_whole_model_until_the_first_set() -> None:
    found = generate(check_every_step(official()))
    steps = found.steps or ()
    assert found.tokens == ar_tokens(COUNT)
    assert steps[0].num_draft_tokens == 0
    assert all(step.num_draft_tokens and step.num_accepted == step.num_draft_tokens for step in steps[1:7])
    assert [choice.step for choice in found.choices][:2] == [6, 15]


def test_the_published_code_never_chooses_to_skip_nothing() -> None:
    for choice in generate(official()).choices:
        assert choice.values["chosen"] >= 1
        assert choice.values["sublayers"]


def test_nothing_learnt_outlives_a_prompt() -> None:
    generator = official()
    first, second = generate(generator), generate(generator)
    assert first.steps is not None
    assert second.steps is not None
    plain = [(choice.step, choice.values["sublayers"]) for choice in first.choices]
    assert plain == [(choice.step, choice.values["sublayers"]) for choice in second.choices]
    assert [s.num_draft_tokens for s in first.steps] == [s.num_draft_tokens for s in second.steps]


def test_ours_keeps_a_set_for_the_next_prompt_until_it_is_reset() -> None:
    generator = build(*QUICK)
    last = generate(generator).choices[-1].values["sublayers"]
    again = generate(generator, 12)
    if last is not None:
        assert again.choices[0].values["reason"] == "carried_over"
        assert again.choices[0].values["sublayers"] == last
        assert (again.steps or ())[1].num_draft_tokens
    assert again.tokens == ar_tokens(12)
    generator.reset()
    assert [step.num_draft_tokens for step in (generate(generator, 7).steps or ())] == [0] * 7


# ---- configuration and stored sets


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("method.optimize_interval=6", "must be more than"),
        ("method.schedule=hours", "tokens, steps"),
        ("method.alpha_estimate=upper", "mean, lower"),
        ("method.planned_length_max=-1", "planned_length_max"),
        ("method.latency=[1.0,2.0,3.0]", "cost_model=paper"),
        ("method.profile_lengths=[100]", "two or more"),
        ("method.skip_set=3", "must be a file"),
        ("method.search_budget=2.0", "from 0 to 1"),
    ],
)
def test_what_makes_no_sense_is_refused(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        composed("model=tiny", "method=knapspec", override)


def test_a_stored_set_is_used_without_any_search(tmp_path: Any) -> None:
    path = store_set(tmp_path / "set.json", {3, 6}, model="weights", card={})
    generator = build(f"method.skip_set={path}", model_hash="weights", latency=None, curve=None)
    assert type(generator.drafter) is LayerSkipDrafter
    assert not generator.drafter.searches
    assert generator.drafter.skip == {3, 6}
    assert generate(generator, 24).tokens == ar_tokens(24)
    with pytest.raises(ConfigError, match="made for model"):
        build(f"method.skip_set={path}", model_hash="others")
