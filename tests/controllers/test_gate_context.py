"""A gate that looks back over all committed tokens: what stays in its cache is what a fresh one would read."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specbench.controllers.gate import FEATURES, GateRows
from specbench.controllers.step_gate import StepGate
from specbench.decoding.protocol import Block
from specbench.types import ConfigError
from tests.controllers.test_gate import WIDTH, a_gate

TEXT = [256, 84, 104, 101, 32, 99, 97, 116, 32, 115, 97, 116]
STATES = torch.randn(len(TEXT), WIDTH, generator=torch.Generator().manual_seed(4))  # row i: what token i left behind
DRAFT = [111, 110, 9, 33]


def blocks(committed: int, sizes: list[int], *, seed: int = 0) -> list[Block]:
    """Blocks of a draft behind the first `committed` tokens; the state after the anchor predicted its first token."""
    draws = torch.Generator().manual_seed(seed)
    hidden = torch.cat([STATES[committed - 1 : committed], torch.randn(len(DRAFT) - 1, WIDTH, generator=draws)])
    prob, entropy, margin = torch.rand(3, len(DRAFT), generator=draws) + 0.1
    found, first = [], 0
    for size in sizes:
        own = slice(first, first + size)
        signals: dict[str, Any] = {"prob": prob[own], "entropy": entropy[own], "margin": margin[own]}
        found.append(Block(first, DRAFT[own], **signals, hidden=hidden[own], past=STATES[: committed - 1]))
        first += size
    return found


def said(live: StepGate, committed: int, sizes: list[int]) -> list[float]:
    live.restart(TEXT[:committed])
    return [chance for block in blocks(committed, sizes) for chance in live.chances(block)]


def fresh(gate: Any) -> StepGate:
    live = StepGate(gate, len(DRAFT))
    live.begin(len(TEXT))
    return live


@pytest.mark.parametrize("mask", ["causal", "block_causal"])
@pytest.mark.parametrize("sizes", [[1, 1, 1, 1], [2, 2], [3, 1]])
def test_block_by_block_and_step_by_step_equal_all_at_once(sizes: list[int], mask: str) -> None:
    block = 1 if sizes[0] == 1 else sizes[0]
    gate = a_gate(scope="context", mask=mask, mask_block=block)
    live = fresh(gate)
    for committed in (5, 6, 9, 12):  # one token, then three, then three
        assert said(live, committed, sizes) == pytest.approx(said(fresh(gate), committed, [4]), abs=1e-5)
    live.begin(len(TEXT))  # another prompt
    assert said(live, 5, sizes) == pytest.approx(said(fresh(gate), 5, [4]), abs=1e-5)


@pytest.mark.parametrize("feature", FEATURES)
def test_rows_are_the_committed_tokens_and_the_draft(feature: str) -> None:
    gate, committed = a_gate(scope="context", feature=feature), 7
    (block,) = blocks(committed, [4])
    assert block.hidden is not None
    before = torch.cat([torch.zeros(1, WIDTH), STATES[: committed - 1], block.hidden])
    count = len(before) - gate.shape.lag
    numbers = torch.zeros(len(before), 3)
    numbers[committed:] = torch.stack([block.prob.log(), block.entropy, block.margin], dim=-1)  # type: ignore[union-attr, list-item]
    rows = GateRows(
        torch.tensor([[*TEXT[:committed], *DRAFT]])[:, :count],
        before[None, :count],
        before[None, 1:] if gate.shape.lag else None,
        numbers[None, :count],
        torch.tensor([0] * committed + [1, 2, 3, 4])[:count],
    )
    with torch.no_grad():
        expected = gate.chances(gate(rows)[0, committed:]).tolist()
    assert said(fresh(gate), committed, [2, 2]) == pytest.approx(expected, abs=1e-5)


def test_it_looks_back_further_than_the_anchor() -> None:
    gate = a_gate(scope="context")
    (block,) = blocks(8, [4])
    near, far = fresh(gate), fresh(gate)
    near.restart(TEXT[:8])
    far.restart([65, *TEXT[1:8]])
    assert near.chances(block) != pytest.approx(far.chances(block), abs=1e-4)
    step = a_gate(scope="step")
    near, far = StepGate(step, 4), StepGate(step, 4)
    near.restart(TEXT[:8])
    far.restart([65, *TEXT[1:8]])
    assert near.chances(block) == far.chances(block)


def test_steps_that_were_not_judged_are_caught_up_with() -> None:
    gate = a_gate(scope="context")
    live = fresh(gate)
    said(live, 5, [2, 2])
    live.restart(TEXT[:7])  # drafted to the cap in one block: nobody asked
    assert said(live, 10, [4]) == pytest.approx(said(fresh(gate), 10, [4]), abs=1e-5)


def test_a_drafter_that_keeps_no_states_is_told() -> None:
    live = fresh(a_gate(scope="context"))
    live.restart(TEXT[:5])
    one = torch.ones(1)
    with pytest.raises(ConfigError, match=r"scope=context.*keeps no states.*legal here: step"):
        live.chances(Block(0, [1], prob=one, entropy=one, margin=one, hidden=torch.ones(1, WIDTH)))
