"""The block rule by hand, and gates that always say yes or no beside a real draft."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specbench.controllers.block_rules import BlockRule, CostRule
from specbench.controllers.fixed import FixedLength
from specbench.controllers.gate import Gate, GateShape
from specbench.controllers.pacer import PacerStop, gate_key
from specbench.controllers.step_gate import StepGate
from specbench.methods.sps import SpeculativeSampling
from specbench.models.artefact import Artefact, Artefacts
from specbench.types import ConfigError
from tests.composed import composed
from tests.decoding.tinies import PROMPT, ar_tokens, decode, tiny_draft

KEY = {"target": "t", "draft": "d", "dtype": "float32", "template": "x", "drafter": "sps"}
COUNT = 40


def config(*overrides: str) -> Any:
    words = [f"method.controller.{word}" for word in overrides]
    return composed("model=tiny", "method=pacer", *words).method.controller


def constant(chance: float) -> Gate:
    """A gate that says the same of every token."""
    draft = tiny_draft()
    gate = Gate(draft.spec, draft.embedding, GateShape()).start_from(draft, 0.5)
    with torch.no_grad():
        gate.out.bias.fill_(torch.logit(torch.tensor(chance), eps=1e-7))
    return gate.requires_grad_(False)


def stop(chance: float, **fields: Any) -> PacerStop:
    options = {"num_draft_tokens": 7, "block_size": 3, "rule": BlockRule()}
    return PacerStop(gate=StepGate(constant(chance), 7), **{**options, **fields})


def steps(controller: Any) -> list[Any]:
    found = decode(SpeculativeSampling(tiny_draft(), controller)).generate(PROMPT, max_new_tokens=COUNT, seed=0)
    assert found.tokens == ar_tokens(COUNT)
    return list(found.steps)


def test_the_threshold_grows_with_the_blocks_to_its_maximum() -> None:
    rule = BlockRule(0.7, 1.05, 0.75)
    assert [rule.limit(number) for number in (1, 2, 3)] == pytest.approx([0.7, 0.735, 0.75])
    assert BlockRule(growth=1.0).limit(9) == 0.7


@pytest.mark.parametrize(
    ("agg", "score"), [("mean", 0.7), ("min", 0.5), ("last", 0.9), ("prod", 0.315), ("cumprod", 0.1575)]
)
def test_what_a_block_scores(agg: str, score: float) -> None:
    assert BlockRule(agg=agg).score([0.7, 0.5, 0.9], survival=0.5) == pytest.approx(score)
    assert BlockRule(agg=agg).score([], survival=0.5) == 1.0


def test_a_gate_that_says_yes_drafts_to_the_cap() -> None:
    always, fixed = steps(stop(1.0)), steps(FixedLength(7))
    assert [step.draft_tokens for step in always] == [step.draft_tokens for step in fixed]
    assert {step.stop_reason for step in always} <= {"cap", "budget"}
    assert always[0].block_lengths == (3, 3, 1)
    assert always[0].block_scores == pytest.approx((1.0, 1.0))


def test_steps_record_the_chance_of_every_judged_token() -> None:
    first = steps(stop(0.9))[0]
    assert first.block_lengths == (3, 3, 1)
    assert first.info["chances"] == pytest.approx([0.9] * 6)  # nobody is asked about the last block
    given_all_before = steps(stop(0.9, conditional=True))[0]
    assert given_all_before.info["conditional_chances"] == pytest.approx([0.9] * 6)


def test_a_gate_that_says_no_drafts_one_block() -> None:
    never, fixed = steps(stop(0.0)), steps(FixedLength(3))
    assert [step.draft_tokens for step in never] == [step.draft_tokens for step in fixed]
    assert never[0].stop_reason == "rule"
    assert never[0].block_scores == pytest.approx((0.0,), abs=1e-6)


def test_at_least_so_many_tokens() -> None:
    assert steps(stop(0.0, min_draft_tokens=5))[0].num_draft_tokens == 6


def test_growth_ends_a_draft_that_a_constant_threshold_would_not() -> None:
    growing = steps(stop(0.75, rule=BlockRule(0.7, 1.1)))[0]
    assert growing.block_lengths == (3, 3)
    assert steps(stop(0.75, rule=BlockRule(0.7, 1.0)))[0].block_lengths == (3, 3, 1)


def test_the_worth_of_another_block() -> None:
    rule = CostRule(draft=0.1, check=0.02, rate=2.0)
    expected = 0.729 * (0.9 + 0.81 + 0.729) / (2.0 * 0.32)
    assert rule.gain([0.9] * 3, 0.729, 3) == pytest.approx(expected)
    rule.learn(emitted=1, drafted=6, blocks=2)
    assert rule.gain([0.9] * 3, 0.729, 3) == pytest.approx(expected * 2.0 / ((16 + 1) / (8 + 1.64)))
    rule.reset()
    assert rule.gain([0.9] * 3, 0.729, 3) == pytest.approx(expected)


def test_the_cost_rule_stops_where_drafting_is_dear() -> None:
    cheap, dear = (CostRule(draft=draft, check=0.0, rate=1.5) for draft in (0.001, 1.0))
    assert steps(stop(0.9, cost=cheap))[0].num_draft_tokens == 7
    assert steps(stop(0.9, cost=dear))[0].num_draft_tokens == 3


# ---- from artefacts


def stored(
    tmp_path: Any, *, key: dict[str, str] | None = None, card: dict[str, Any] | None = None, **values: Any
) -> Artefacts:
    gate = constant(0.6)
    keys = {**KEY, **gate_key(config()), **(key or {})}
    part = Artefact("pacer", keys, {**gate.values(), **values}, card or {}, gate.tensors())
    part.save(tmp_path / "pacer.json")
    return Artefacts(KEY, (tmp_path,), tiny_draft())


def test_auto_is_the_card(tmp_path: Any) -> None:
    card = {"block_size": 2, "threshold": 0.4, "threshold_growth": 1.1, "num_draft_tokens": 9}
    built = PacerStop.build(config(), stored(tmp_path, **card))
    assert (built.block_size, built.num_draft_tokens, built.min_draft_tokens) == (2, 9, 2)
    assert built.rule == BlockRule(0.4, 1.1, 0.95, "mean")
    assert built.signals == {"hidden", "prob", "entropy", "margin"}
    given = config("block_size=4", "threshold=0.6", "threshold_growth=1", "num_draft_tokens=5", "min_draft_tokens=5")
    built = PacerStop.build(given, stored(tmp_path, **card))
    assert (built.block_size, built.num_draft_tokens, built.min_draft_tokens) == (4, 5, 5)
    assert built.rule == BlockRule(0.6, 1.0, 0.95, "mean")


def test_auto_beside_a_given_block_size_is_what_was_best_at_that_size(tmp_path: Any) -> None:
    values = {"block_size": 2, "threshold": 0.4, "threshold_growth": 1.1}
    artefacts = stored(tmp_path, card={"replay": {"4": {"threshold": 0.9, "threshold_growth": 1.0}}}, **values)
    assert PacerStop.build(config(), artefacts).rule == BlockRule(0.4, 1.1, 0.95, "mean")
    assert PacerStop.build(config("block_size=4"), artefacts).rule == BlockRule(0.9, 1.0, 0.95, "mean")
    assert PacerStop.build(config("block_size=4", "threshold=0.5"), artefacts).rule == BlockRule(0.5, 1.0, 0.95, "mean")
    assert PacerStop.build(config("block_size=8"), artefacts).rule == BlockRule(0.4, 1.1, 0.95, "mean")  # never tried


def test_without_the_cards_values_ours(tmp_path: Any) -> None:
    built = PacerStop.build(config(), stored(tmp_path))
    assert (built.block_size, built.num_draft_tokens) == (3, 16)
    assert built.rule == BlockRule(0.7, 1.05, 0.95, "mean")


@pytest.mark.parametrize("name", ["target", "draft", "dtype", "template", "drafter", "feature"])
def test_a_gate_for_something_else_is_refused(name: str, tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{name}: other, here .*scripts/train_pacer\.py"):
        PacerStop.build(config(), stored(tmp_path, key={name: "other"}))


def test_a_block_causal_gate_has_one_block_size(tmp_path: Any) -> None:
    chosen = config("mask=block_causal")
    artefacts = stored(tmp_path, key=gate_key(chosen), mask="block_causal", block_size=3)
    assert PacerStop.build(chosen, artefacts).block_size == 3
    with pytest.raises(ConfigError, match=r"block_size=2: .*blocks of 3"):
        PacerStop.build(replace(chosen, block_size=2), artefacts)


def test_costs_come_from_the_card(tmp_path: Any) -> None:
    chosen = config("rule=cost", "label=conditional", "agg=prod")
    with pytest.raises(ConfigError, match="rule=cost"):
        PacerStop.build(chosen, stored(tmp_path, key=gate_key(chosen)))
    costs = {"draft": 0.1, "check": 0.02, "rate": 2.0}
    built = PacerStop.build(chosen, stored(tmp_path, key=gate_key(chosen), costs=costs))
    assert built.cost == CostRule(**costs)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["agg=prod"], r"label=survive, method\.controller\.agg=prod.*mean, min, last"),
        (["label=conditional"], r"agg=mean.*prod, cumprod"),
        (["rule=cost"], r"label=survive.*conditional, soft"),
        (["block_size=many"], r"block_size=many.*auto, a number from 1 to 16"),
        (["threshold_growth=0.5"], r"threshold_growth=0\.5: must be from 1 to 10"),
        (["mask=block_causal", "feature=both"], r"feature=both.*pred_state"),
        (["feature=state"], r"feature=state.*own_state"),
    ],
)
def test_the_configuration_says_what_goes_with_what(words: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        config(*words)


def test_nothing_is_asked_before_a_prompt() -> None:
    controller = stop(0.5)
    with pytest.raises(AssertionError, match="begin comes first"):
        controller.start_step(5)
    controller.begin(SimpleNamespace(committed=[1], max_new_tokens=5))
    assert controller.start_step(5) == 5
