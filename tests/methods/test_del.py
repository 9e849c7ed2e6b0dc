"""DEL: work reused exactly, statistics that equal those of one pass over the whole answer, and when it drafts."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
import torch

from specbench.controllers.fixed import FixedLength
from specbench.decoding.loop import SpeculativeDecoding
from specbench.decoding.target import Target
from specbench.methods import del_
from specbench.methods.del_ import DynamicExit
from specbench.methods.exits import ExitStatistics, Plan
from specbench.models.decoder import Decoder, Taps
from specbench.models.tiny import SPEC
from specbench.types import Sampling
from tests.decoding.tinies import PROMPT, ar_tokens, check_every_step, decode, tiny_target
from tests.methods.test_sps import exact_joint, p_value, small

EXITS = SPEC.num_layers - 1
COUNT = 40
FIRST = Plan(1, 1)
LONG_PROMPT = (*PROMPT, *b"once more, and once more, and then once more again")


def drafter(*, omega: float = 0.95, start: Plan = FIRST, cap: int = 6, **changes: Any) -> DynamicExit:
    return DynamicExit(FixedLength(cap), ExitStatistics(EXITS, omega), start, **changes)


def run(built: DynamicExit, prompt: tuple[int, ...] = PROMPT, count: int = COUNT, **changes: Any) -> Any:
    generator = check_every_step(decode(built, **changes))
    return generator.generate(prompt, max_new_tokens=count, seed=0)


def follow(monkeypatch: pytest.MonkeyPatch, plans: list[Plan]) -> None:
    """Every analysis ends in the next of these plans, over and over."""
    turns = itertools.cycle(plans)
    monkeypatch.setattr(del_, "best_plan", lambda *_, **__: next(turns))


ALL_PLANS = [Plan(exit_layer, length) for length in (1, 3, 6) for exit_layer in range(1, EXITS + 1)]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "top_k": 30}], ids=["greedy", "sampling"])
def test_every_exit_hands_over_exact_work(monkeypatch: pytest.MonkeyPatch, sampling: dict[str, float]) -> None:
    follow(monkeypatch, ALL_PLANS)
    built = drafter()
    built.statistics.thresholds = lambda: [None] * EXITS  # type: ignore[method-assign]  # nothing stops a draft early
    found = run(built, count=60, **sampling)  # the cache is compared before every step
    used = Counter(step.info["exit_layer"] for step in found.steps if step.num_draft_tokens)
    assert set(used) == set(range(1, EXITS + 1))
    assert {step.num_draft_tokens for step in found.steps[1:]} >= {1, 3, 6}
    if not sampling:
        assert found.tokens == ar_tokens(60)


def test_verification_takes_drafted_tokens_up_where_the_draft_left_them(monkeypatch: pytest.MonkeyPatch) -> None:
    follow(monkeypatch, [Plan(3, 4)])
    decoder, rows = Decoder(SPEC, dtype=torch.float32), Counter()
    for slot, source in zip(decoder.slots().values(), tiny_target().slots().values(), strict=True):
        slot.copy_(source)
    decoder.finish("library")
    attention = decoder._attention

    def counted(index: int, hidden: torch.Tensor, *rest: Any) -> torch.Tensor:
        rows[index] += hidden.shape[1]
        return attention(index, hidden, *rest)

    monkeypatch.setattr(decoder, "_attention", counted)
    found = SpeculativeDecoding(Target(decoder), drafter(stop_after_misses=False)).generate(
        PROMPT, max_new_tokens=COUNT, seed=0
    )
    processed = len(PROMPT) - 1 + sum(1 + step.num_draft_tokens for step in found.steps)
    assert rows == dict.fromkeys(range(SPEC.num_layers), processed)  # every row went through every layer once


def shares_of_one_pass(prompt: tuple[int, ...], answer: tuple[int, ...], prompt_columns: int) -> list[float]:
    """How often each exit names the last layer's token, over the answer and the last prompt positions before it."""
    decoder, tokens = tiny_target(), (*prompt, *answer)
    exits = range(1, 2 * EXITS, 2)
    with torch.inference_mode():
        out = decoder.forward(torch.tensor([tokens]), taps=Taps(residuals=exits))
        assert out.logits is not None
        truth = out.logits[0].argmax(-1)
        named = torch.stack([decoder.head(decoder.final_norm(out.residuals[index][0])).argmax(-1) for index in exits])
    first = max(0, len(prompt) - 1 - prompt_columns)
    return (named == truth)[:, first : len(tokens) - 1].double().mean(1).tolist()


@pytest.mark.parametrize("prompt", [PROMPT, LONG_PROMPT, (90,)], ids=["short", "long", "one token"])
@pytest.mark.parametrize("prompt_columns", [0, 32])
def test_shares_are_those_of_one_pass_over_the_answer(prompt: tuple[int, ...], prompt_columns: int) -> None:
    built = drafter(omega=1.0, prompt_columns=prompt_columns, idle_interval=1)
    found = run(built, prompt)
    drafted = [step for step in found.steps if step.num_draft_tokens]
    assert any(step.num_accepted < step.num_draft_tokens for step in drafted)
    assert any(step.num_accepted for step in drafted)
    assert built.statistics.alphas() == pytest.approx(shares_of_one_pass(prompt, found.tokens, prompt_columns))


def test_the_first_step_keeps_to_its_plan_and_later_ones_to_theirs() -> None:
    found = run(drafter(start=Plan(2, 3)))
    assert found.steps[0].info["exit_layer"] == 2
    assert found.steps[0].num_draft_tokens == 3
    plans = {record.step: record.values for record in found.choices}
    current = plans[0]
    for step in found.steps[1:-1]:
        if step.num_draft_tokens:
            assert step.info["exit_layer"] == current["exit_layer"]
            assert step.num_draft_tokens <= current["planned_length"]
        current = plans.get(step.step, current)


def test_the_planned_length_may_be_ignored_as_published() -> None:
    built = drafter(use_planned_length=False, lengths=range(1))  # always plans to draft nothing
    found = run(built)
    assert found.steps[0].num_draft_tokens == 1
    assert max(step.num_draft_tokens for step in found.steps[1:]) > 1
    assert min(step.num_draft_tokens for step in found.steps[1:-1]) >= 1
    assert found.tokens == ar_tokens(COUNT)


@pytest.mark.parametrize("interval", [1, 4])
def test_a_plan_of_nothing_is_plain_steps_that_are_learnt_from_at_times(interval: int) -> None:
    built = drafter(lengths=range(1), idle_interval=interval)
    looks: list[bool] = []
    needs = built.needs

    def noted() -> Any:
        wanted = needs()
        looks.append(bool(wanted.residuals))
        return wanted

    built.needs = noted  # type: ignore[method-assign]
    found = run(built, count=14)
    assert [step.num_draft_tokens for step in found.steps] == [1] + [0] * (len(found.steps) - 1)
    assert looks[1:] == [step % interval == 0 for step in range(len(found.steps))]
    assert found.choices[0].values["sublayers"] is None
    assert found.tokens == ar_tokens(14)


def one_kind(*, hits: bool, **changes: Any) -> DynamicExit:
    """Every exit has been right only, or wrong only."""
    built = drafter(use_planned_length=False, **changes)
    built.statistics.learn(torch.full((EXITS, 4), hits), torch.full((EXITS, 4), 0.5))
    return built


def test_an_exit_that_was_never_right_drafts_one_token_at_most() -> None:
    assert one_kind(hits=False).threshold == 1.0
    assert run(one_kind(hits=False), count=20).steps[0].num_draft_tokens == 1
    assert one_kind(hits=False, stop_after_misses=False).threshold is None
    assert run(one_kind(hits=False, stop_after_misses=False), count=20).steps[0].num_draft_tokens == 6


def test_an_exit_that_was_never_wrong_is_not_stopped() -> None:
    assert one_kind(hits=True).threshold is None
    assert run(one_kind(hits=True), count=20).steps[0].num_draft_tokens == 6


def test_a_draft_ends_with_the_first_token_below_the_threshold() -> None:
    built = drafter(use_planned_length=False)
    built.statistics.learn(
        torch.tensor([[True, False]] * EXITS), torch.tensor([[1.0, 0.9]] * EXITS)
    )  # 0.95: seldom reached
    assert built.threshold == pytest.approx(0.95)
    assert run(built, count=20).steps[0].num_draft_tokens == 1


def test_what_was_learnt_is_forgotten_on_reset() -> None:
    built = drafter()
    first = run(built)
    assert not built.statistics.empty
    built.reset()
    assert built.statistics.empty
    assert built.plan == Plan(1, 1)
    assert [step.draft_tokens for step in run(built).steps] == [step.draft_tokens for step in first.steps]


def test_choices_say_which_layers_drafted() -> None:
    found = run(drafter())
    assert len(found.choices) >= 1
    for record in found.choices:
        values = record.values
        if values["planned_length"]:
            assert values["sublayers"] == list(range(2 * values["exit_layer"], 2 * SPEC.num_layers))
            assert values["num_mlp_skipped"] == SPEC.num_layers - values["exit_layer"]
        assert values["search_s"] > 0


def test_sampled_tokens_follow_the_target() -> None:
    target, prompt, sampling = small(2, layers=3), [1, 2], Sampling(temperature=0.9, top_k=4)
    built = DynamicExit(FixedLength(2), ExitStatistics(2, 0.95), Plan(1, 2), lengths=range(2, 3))
    generator = SpeculativeDecoding(Target(target), built, sampling)
    counts: Counter[tuple[int, ...]] = Counter()
    accepted = drafted = 0
    for seed in range(400):
        generator.reset()
        found = generator.generate(prompt, max_new_tokens=3, seed=seed)
        counts[found.tokens[:2]] += 1
        accepted += found.steps[0].num_accepted
        drafted += found.steps[0].num_draft_tokens
    assert 0.1 < accepted / drafted < 0.95  # rejection and acceptance both took part
    assert p_value(counts, exact_joint(target, prompt, 2, sampling)) > 1e-2
