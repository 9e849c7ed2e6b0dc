"""The gate with folded weights says what the gate itself says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from specbench.controllers import gate as gate_module
from specbench.controllers.gate import Gate, GateShape
from specbench.controllers.quick_gate import QuickGate, beside_a_draft
from specbench.controllers.step_gate import StepGate
from tests.controllers.test_gate import ANCHOR, TOKENS, K, a_gate, blocks, said
from tests.decoding.tinies import tiny_draft

SHAPES: list[dict[str, Any]] = [
    {},
    {"scalars": False},
    {"step_pos": False},
    {"num_layers": 2},
    {"width_divisor": 2},
    {"max_index": 3},
]


def calibrated(**shape: Any) -> Gate:
    """Every number that is folded is not what it starts as."""
    gate = a_gate(**shape)
    with torch.no_grad():
        gate.scalar_mean.copy_(torch.tensor([-1.0, 0.5, 2.0]))
        gate.scalar_spread.copy_(torch.tensor([2.0, 0.3, 1.5]))
        gate.temperature.fill_(1.7)
        gate.offset.fill_(-0.4)
    return gate


@pytest.mark.parametrize("sizes", [[1] * 7, [3, 3, 1], [7]])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_says_what_the_gate_says(shape: dict[str, Any], sizes: list[int]) -> None:
    gate = calibrated(**shape)
    plain = said(gate, blocks(sizes), StepGate(gate, K))
    assert len({round(chance, 4) for chance in plain}) > 3, "a constant answer would prove nothing"
    quick = QuickGate(gate, K)
    for _ in range(2):  # a step starts anew
        assert said(gate, blocks(sizes), quick) == pytest.approx(plain, abs=1e-5)


def test_biases_of_the_drafts_shape_count() -> None:
    draft = tiny_draft()
    gate = Gate(replace(draft.spec, qkv_bias=True, o_bias=True, mlp_bias=True), draft.embedding, GateShape())
    generator = torch.Generator().manual_seed(8)
    for tensor in gate.trained():
        torch.nn.init.normal_(tensor, std=0.2, generator=generator)
    gate.requires_grad_(False)
    plain = said(gate, blocks([3, 4]), StepGate(gate, K))
    assert said(gate, blocks([3, 4]), QuickGate(gate, K)) == pytest.approx(plain, abs=1e-5)


def test_norms_of_queries_and_keys_keep_the_general_way() -> None:
    draft = tiny_draft()
    gate = Gate(replace(draft.spec, qk_norm=True), draft.embedding, GateShape())
    assert type(beside_a_draft(gate, K)) is StepGate


def test_it_sees_the_anchor() -> None:
    quick = QuickGate(calibrated(), K)
    found = []
    for anchor in (ANCHOR, ANCHOR + 1):
        quick.restart([1, anchor])
        found.append(quick.chances(blocks([3])[0]))
    assert found[0] != pytest.approx(found[1], abs=1e-5)


def test_states_come_in_the_drafts_own_dtype() -> None:
    gate = calibrated(width_divisor=2)
    states = torch.randn(K, 64, generator=torch.Generator().manual_seed(5)).bfloat16()
    drafted = blocks([3, 4], TOKENS, states)
    plain = said(gate, drafted, StepGate(gate, K))
    assert said(gate, drafted, QuickGate(gate, K)) == pytest.approx(plain, abs=1e-5)


def test_a_gate_that_was_loaded_is_asked_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its products are packed."""
    made, draft = calibrated(), tiny_draft()
    for path in ("library", "packed"):
        monkeypatch.setattr(gate_module, "choose_path", lambda dtype, device, path=path: path)
        gate = Gate(draft.spec, draft.embedding, made.shape).load(made.tensors())
        plain = said(gate, blocks([3, 4]), StepGate(gate, K))
        assert said(gate, blocks([3, 4]), QuickGate(gate, K)) == pytest.approx(plain, abs=1e-3)


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ({}, QuickGate),
        ({"feature": "own_state"}, StepGate),
        ({"feature": "both"}, StepGate),
        ({"mask": "block_causal"}, StepGate),
        ({"scope": "context"}, StepGate),
    ],
)
def test_shapes_that_it_cannot_ask_keep_the_general_way(shape: dict[str, Any], kind: type) -> None:
    assert type(beside_a_draft(a_gate(**shape), K)) is kind
