"""The gate's layer: block by block it says what it says of the whole draft, and it sees what it should and no more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.controllers.gate import FEATURES, Gate, GateShape
from specbench.controllers.quick_gate import QuickGate
from specbench.controllers.step_gate import StepGate
from specbench.decoding.protocol import Block
from specbench.models.linear import Linear
from tests.decoding.tinies import tiny_draft

WIDTH, K = 64, 7
TOKENS = [5, 9, 9, 70, 33, 2, 101]
ANCHOR = 42


def a_gate(**shape: Any) -> Gate:
    torch.manual_seed(3)
    draft = tiny_draft()
    gate = Gate(draft.spec, draft.embedding, GateShape(**shape))
    for tensor in gate.trained():
        torch.nn.init.normal_(tensor, std=0.2)
    return gate.requires_grad_(False)


def blocks(sizes: list[int], tokens: list[int] | None = None, states: Tensor | None = None) -> list[Block]:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(K, WIDTH, generator=generator) if states is None else states
    numbers = torch.rand(3, K, generator=torch.Generator().manual_seed(2)) + 0.1
    found, first = [], 0
    for size in sizes:
        own = slice(first, first + size)
        prob, entropy, margin = (part[own] for part in numbers)
        drawn = (tokens or TOKENS)[own]
        found.append(Block(first, drawn, prob=prob, entropy=entropy, margin=margin, hidden=hidden[own]))
        first += size
    return found


def said(gate: Gate, drafted: list[Block], live: StepGate | QuickGate | None = None) -> list[float]:
    live = live or StepGate(gate, K)
    live.restart([ANCHOR])
    return [chance for block in drafted for chance in live.chances(block)]


@pytest.mark.parametrize("sizes", [[1] * 7, [3, 3, 1], [2, 5]])
@pytest.mark.parametrize("feature", FEATURES)
def test_block_by_block_equals_all_at_once(feature: str, sizes: list[int]) -> None:
    gate = a_gate(feature=feature)
    assert said(gate, blocks(sizes)) == pytest.approx(said(gate, blocks([7])), abs=1e-5)


def test_block_causal_tokens_see_their_block_and_no_later_one() -> None:
    gate = a_gate(mask="block_causal", mask_block=3)
    whole = said(gate, blocks([7]))
    assert said(gate, blocks([3, 3, 1])) == pytest.approx(whole, abs=1e-5)
    changed = said(gate, blocks([7], tokens=[5, 9, 8, 70, 33, 2, 101]))
    assert abs(changed[0] - whole[0]) > 1e-4  # token 3 is seen by token 1
    later = said(gate, blocks([7], tokens=[5, 9, 9, 71, 33, 2, 101]))
    assert later[:3] == pytest.approx(whole[:3], abs=1e-6)


@pytest.mark.parametrize("feature", FEATURES)
def test_a_tokens_chance_depends_on_that_token(feature: str) -> None:
    """Off by one, it would be judged by the token before."""
    gate = a_gate(feature=feature, scalars=False)
    before, after = (said(gate, blocks([7], tokens=[*TOKENS[:3], other, *TOKENS[4:]])) for other in (70, 200))
    assert before[:3] == pytest.approx(after[:3], abs=1e-6)
    assert abs(before[3] - after[3]) > 1e-4


def test_the_feature_says_whose_state_is_seen() -> None:
    """State 3 predicted token 4 and has read token 3 (counted from 1)."""
    states = torch.randn(K, WIDTH, generator=torch.Generator().manual_seed(1))
    other = states.clone()
    other[3] += torch.randn(WIDTH, generator=torch.Generator().manual_seed(9))
    first_changed = {}
    for feature in FEATURES:
        gate = a_gate(feature=feature, scalars=False)
        pairs = zip(said(gate, blocks([7], states=states)), said(gate, blocks([7], states=other)), strict=True)
        first_changed[feature] = next(index for index, (a, b) in enumerate(pairs, start=1) if abs(a - b) > 1e-5)
    assert first_changed == {"pred_state": 4, "own_state": 3, "both": 3}


def test_the_newest_token_waits_where_its_own_state_is_needed() -> None:
    live = StepGate(a_gate(feature="own_state"), K)
    live.restart([ANCHOR])
    assert [len(live.chances(block)) for block in blocks([1, 3, 3])] == [0, 3, 3]


def test_a_step_starts_anew() -> None:
    gate = a_gate()
    live = StepGate(gate, K)
    once = said(gate, blocks([3, 3, 1]), live)
    assert live.cache.length == K + 1
    assert said(gate, blocks([3, 3, 1]), live) == once
    live.restart([ANCHOR + 1])
    assert live.cache.length == 0
    assert live.chances(blocks([3])[0]) != pytest.approx(once[:3], abs=1e-5)  # the anchor is seen


@pytest.mark.parametrize("part", ["scalars", "step_pos"])
def test_parts_can_be_left_out(part: str) -> None:
    gate = a_gate(**{part: False})
    assert not any(name.startswith({"scalars": "scalars.", "step_pos": "index."}[part]) for name in gate.tensors())
    drafted = blocks([7])
    if part == "scalars":
        bare = [replace(block, prob=None, entropy=None, margin=None) for block in drafted]
        assert said(gate, bare) == said(gate, drafted)


def test_it_starts_as_the_drafts_last_layer_that_says_the_base_rate() -> None:
    draft = tiny_draft()
    gate = Gate(draft.spec, draft.embedding, GateShape()).start_from(draft, 0.8)
    assert said(gate.requires_grad_(False), blocks([7])) == pytest.approx([0.8] * 7, abs=1e-5)
    slot = "model.layers.{}.self_attn.q_proj.weight"
    assert torch.equal(gate.slots()[slot.format(0)], draft.slots()[slot.format(draft.spec.num_layers - 1)])


def test_it_comes_back_from_its_tensors_without_the_embedding() -> None:
    gate, draft = a_gate(num_layers=2), tiny_draft()
    assert not any("embed_tokens" in name or "lm_head" in name for name in gate.tensors())
    again = Gate(draft.spec, draft.embedding, gate.shape).load(gate.tensors())
    half_precision = 1e-3  # of a loaded layer, where that is the faster product
    assert said(again, blocks([3, 4])) == pytest.approx(said(gate, blocks([3, 4])), abs=half_precision)
    assert again.body.embedding is draft.embedding


def test_a_narrower_layer_says_the_same_in_blocks_and_comes_back() -> None:
    gate, draft = a_gate(width_divisor=2), tiny_draft()
    whole = said(gate, blocks([7]))
    assert said(gate, blocks([3, 3, 1])) == pytest.approx(whole, abs=1e-5)
    assert gate.slots()["model.layers.0.self_attn.q_proj.weight"].shape == (32, 32)
    again = Gate(draft.spec, draft.embedding, gate.shape).load(gate.tensors())
    assert said(again, blocks([7])) == pytest.approx(whole, abs=1e-3)
    fresh = Gate(draft.spec, draft.embedding, gate.shape).start_from(draft, 0.8).requires_grad_(False)
    assert said(fresh, blocks([7])) == pytest.approx([0.8] * 7, abs=1e-5)


def test_packed_weights_unpack() -> None:
    weight = torch.randn(12, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    packed = Linear(weight.clone())
    packed.prepare("packed")
    torch.testing.assert_close(packed.dense(), weight.float(), atol=0, rtol=0)
