"""The lengths that each rule produces, step by step, when it is told what was accepted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specbench.controllers.confidence import ConfidenceStop
from specbench.controllers.fixed import FixedLength, NoController
from specbench.controllers.heuristic import Heuristic
from specbench.decoding.protocol import Block
from specbench.types import Verdict


def verdict(accepted: int) -> Verdict:
    return Verdict(tuple(range(accepted)), (0,) * (accepted + 1), accepted, accepted, 0)


def length(controller: Any, budget: int = 100) -> int:
    """Tokens that a drafter whose signals never stop it would draft."""
    cap, drafted = controller.start_step(budget), 0
    while drafted < cap:
        size = min(controller.block_size, cap - drafted)
        block = Block(drafted, [0] * size)
        drafted += size
        if drafted == cap:
            controller.ended(block)
        elif not controller.more(block):
            break
    return drafted


def test_fixed_is_constant_within_the_budget() -> None:
    controller = FixedLength(num_draft_tokens=4)
    lengths = []
    for budget in (100, 4, 3, 1, 0):
        lengths.append(length(controller, budget))
        controller.end_step(lengths[-1], verdict(lengths[-1]))
    assert lengths == [4, 4, 3, 1, 0]


def test_fixed_looks_at_nothing_in_between() -> None:
    controller = FixedLength(num_draft_tokens=4)
    assert controller.start_step(10) == controller.block_size == 4
    assert not controller.signals


def test_no_controller_leaves_the_budget() -> None:
    assert NoController().start_step(17) == 17


def script(controller: Any, accepted: list[int | None], budget: int = 100) -> list[int]:
    """Lengths of successive steps; an entry is what was accepted, None = all."""
    lengths = []
    for count in accepted:
        lengths.append(length(controller, budget))
        controller.end_step(lengths[-1], verdict(lengths[-1] if count is None else count))
    return lengths


def test_heuristic_grows_by_two_and_shrinks_by_one() -> None:
    controller = Heuristic(num_draft_tokens=20, start=5, grow=2, shrink=1)
    assert script(controller, [None, None, 0, 3, None, 0]) == [5, 7, 9, 8, 7, 9]


def test_heuristic_stays_between_one_and_the_cap() -> None:
    assert script(Heuristic(num_draft_tokens=8, start=5), [None] * 4) == [5, 7, 8, 8]
    assert script(Heuristic(num_draft_tokens=8, start=3), [0] * 5) == [3, 2, 1, 1, 1]


def test_heuristic_without_a_cap_grows_on() -> None:
    assert script(Heuristic(num_draft_tokens=None, start=18), [None] * 4) == [18, 20, 22, 24]


def test_heuristic_asked_for_nothing_learns_nothing() -> None:
    controller = Heuristic()
    assert length(controller, 0) == 0
    controller.end_step(0, verdict(0))
    assert length(controller) == 5


def test_heuristic_remembers_until_reset() -> None:
    controller = Heuristic()
    script(controller, [None, None])
    assert length(controller) == 9
    controller.reset()
    assert length(controller) == 5


def test_heuristic_drafts_within_the_budget_and_keeps_its_length() -> None:
    controller = Heuristic()
    assert script(controller, [0], budget=2) == [2]
    assert length(controller) == 4


@pytest.mark.parametrize(
    ("probs", "drafted"),
    [([0.9, 0.9, 0.9, 0.9], 4), ([0.9, 0.39, 0.9, 0.9], 2), ([0.1, 0.9, 0.9, 0.9], 1), ([0.9, 0.4, 0.9, 0.3], 4)],
)
def test_confidence_keeps_the_token_that_it_doubts(probs: list[float], drafted: int) -> None:
    controller = ConfidenceStop(num_draft_tokens=4, threshold=0.4)
    assert controller.start_step(100) == 4
    assert controller.start_step(3) == 3
    assert controller.block_size == 1
    count = 0
    for prob in probs:
        count += 1
        if not controller.more(Block(count - 1, [0], prob=torch.tensor([prob], dtype=torch.float64))):
            break
    assert count == drafted
    assert controller.signals == {"prob"}


def test_confidence_of_a_burst_is_that_of_its_weakest_token() -> None:
    controller = ConfidenceStop(threshold=0.5)
    assert controller.more(Block(0, [1, 2], prob=torch.tensor([0.9, 0.6])))
    assert not controller.more(Block(0, [1, 2], prob=torch.tensor([0.9, 0.3])))
