"""PACER as the length controller of Ouroboros: the gate sees the draft's own rows, and lengths are what it says."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from specbench.controllers.block_rules import BlockRule
from specbench.controllers.fixed import FixedLength
from specbench.controllers.gate import FEATURES, Gate, GateShape
from specbench.controllers.pacer import PacerStop
from specbench.controllers.step_gate import StepGate
from specbench.decoding.loop import SpeculativeDecoding
from specbench.decoding.protocol import Block
from specbench.decoding.target import Target
from specbench.models.decoder import Decoder
from specbench.types import ConfigError, Sampling
from tests.composed import composed
from tests.controllers.test_pacer import stop
from tests.decoding.tinies import ar_tokens, tiny_draft
from tests.methods.test_ouroboros import COUNT, LOOP, drafts, ouroboros, run, watched
from tests.methods.test_sps import exact_joint, p_value, small

VARIANTS = ("library", "spec_bench")


def spines(controller: Any, **options: Any) -> list[tuple[int, ...]]:
    found = run(watched(ouroboros(controller, **options)))
    assert found.tokens == ar_tokens(COUNT, LOOP)
    return [spine for _, spine in drafts(found)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_gate_that_says_yes_drafts_to_the_cap(variant: str) -> None:
    assert spines(stop(1.0), variant=variant) == spines(FixedLength(7), variant=variant)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("overshoot", ["extend", "carry"])
def test_a_gate_that_says_no_drafts_one_block(variant: str, overshoot: str) -> None:
    found = run(watched(ouroboros(stop(0.0), variant=variant, block_overshoot=overshoot)))
    assert found.tokens == ar_tokens(COUNT, LOOP)
    judged = [step for step in found.steps or () if step.stop_reason == "rule"]
    assert judged
    for step in judged:
        assert step.block_scores == pytest.approx((0.0,), abs=1e-6)
        assert sum(step.block_lengths) >= 3
        if overshoot == "extend":
            assert step.block_lengths == (step.num_draft_tokens,)


def a_gate(draft: Decoder, **shape: Any) -> Gate:
    torch.manual_seed(3)
    gate = Gate(draft.spec, draft.embedding, GateShape(**shape))
    for tensor in gate.trained():
        torch.nn.init.normal_(tensor, std=0.2)
    return gate.requires_grad_(False)


@pytest.mark.parametrize("overshoot", ["extend", "carry"])
@pytest.mark.parametrize("feature", FEATURES)
def test_the_gate_says_what_it_says_of_the_same_tokens_of_a_plain_draft(feature: str, overshoot: str) -> None:
    """Phrases give several tokens a pass; the rows behind them are gathered as if the draft had gone one by one."""
    gate = a_gate(tiny_draft(), feature=feature)
    never = PacerStop(num_draft_tokens=12, block_size=3, gate=StepGate(gate, 12), rule=BlockRule(0.0))
    found = run(ouroboros(never, block_overshoot=overshoot))
    compared = 0
    for committed, spine in drafts(found):
        step = next(s for s in found.steps or () if s.context_length == len(committed))
        live = list(step.info["chances"])
        expected = plain_chances(gate, committed, spine)[: len(live)]
        assert live == pytest.approx(expected, abs=1e-4)
        compared += len(live)
    assert compared > 20


@pytest.mark.parametrize("cap", [3, 4, 5])
def test_a_burst_beyond_the_cap_is_not_judged(cap: int) -> None:
    gate = StepGate(a_gate(tiny_draft()), cap)
    controller = PacerStop(num_draft_tokens=cap, block_size=1, gate=gate, rule=BlockRule(0.0))
    found = run(watched(ouroboros(controller, block_overshoot="carry")))
    assert found.tokens == ar_tokens(COUNT, LOOP)
    drafted = [step for step in found.steps or () if step.num_draft_tokens]
    assert max(step.num_draft_tokens or 0 for step in drafted) >= cap + 2, "no burst crossed the cap"
    assert all(len(step.info["chances"]) < cap for step in drafted)
    assert all(sum(step.block_lengths) == step.num_draft_tokens for step in drafted)


def plain_chances(gate: Gate, committed: list[int], spine: tuple[int, ...]) -> list[float]:
    with torch.inference_mode():
        out = tiny_draft().forward(torch.tensor([[*committed, *spine[:-1]]]))
    assert out.logits is not None
    assert out.normed is not None
    logits, states = out.logits[0, -len(spine) :], out.normed[0, -len(spine) :]
    log_p = logits.log_softmax(-1)
    top = logits.topk(2, dim=-1).values
    block = Block(
        0,
        list(spine),
        prob=log_p.gather(1, torch.tensor(spine)[:, None])[:, 0].exp(),
        entropy=-(log_p.exp() * log_p).sum(-1),
        margin=top[:, 0] - top[:, 1],
        hidden=states,
    )
    live = StepGate(gate, len(spine))
    live.restart(committed)
    return live.chances(block)


@pytest.mark.slow
def test_a_gate_that_looks_at_drawn_tokens_leaves_the_distribution_alone() -> None:
    target, draft, prompt, sampling = small(2), small(11), [1, 2], Sampling(temperature=0.9, top_k=4)
    controller = PacerStop(num_draft_tokens=3, gate=StepGate(a_gate(draft), 3), rule=BlockRule(0.5, 1.0))
    generator = SpeculativeDecoding(Target(target), ouroboros(controller, draft, level=3), sampling)
    counts: Counter[tuple[int, ...]] = Counter()
    reasons: Counter[str | None] = Counter()
    for seed in range(500):
        found = generator.generate(prompt, max_new_tokens=4, seed=seed)
        counts[found.tokens[:2]] += 1
        reasons[found.steps[0].stop_reason] += 1
    assert reasons["rule"] > 50
    assert reasons["cap"] + reasons["budget"] > 50
    assert p_value(counts, exact_joint(target, prompt, 2, sampling)) > 1e-2
    assert p_value(counts, exact_joint(draft, prompt, 2, sampling)) < 1e-6  # the test can tell the models apart


def test_the_configuration_is_ouroboros_with_the_gate() -> None:
    ours, plain = (composed("model=tiny", f"method={name}").method for name in ("pacer_ouroboros", "ouroboros"))
    assert (ours.name, ours.controller.name, plain.controller.name) == ("pacer_ouroboros", "pacer", "fixed")
    assert {key: value for key, value in vars(ours).items() if key not in ("name", "controller")} == {
        key: value for key, value in vars(plain).items() if key not in ("name", "controller")
    }
    published = composed("model=tiny", "method=pacer_ouroboros", "method.variant=spec_bench").method
    assert published.variant == "spec_bench"
    official = composed("model=tiny", "method=ouroboros_official", "method/controller=pacer").method
    assert (official.scope, official.truncate_overshoot, official.controller.name) == ("run", True, "pacer")
    with pytest.raises(ConfigError, match="block_size=17"):
        composed("model=tiny", "method=pacer_ouroboros", "method.controller.block_size=17")
