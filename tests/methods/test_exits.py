"""What DEL learns and how it decides, by hand and by brute force."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specbench.controllers.base import ControllerBase
from specbench.controllers.confidence import ConfidenceStop
from specbench.controllers.fixed import FixedLength
from specbench.decoding.protocol import Block
from specbench.methods.exits import ExitStatistics, ThresholdStop, best_plan, head_in_layers, joined, read_out
from tests.decoding.tinies import tiny_target


def learnt() -> ExitStatistics:
    """Exit 1 is right 1 of 3 times, exit 2 always, exit 3 never."""
    statistics = ExitStatistics(3, omega=0.5)
    match = torch.tensor([[True, False, False], [True, True, True], [False, False, False]])
    prob = torch.tensor([[0.9, 0.2, 0.4], [0.5, 0.6, 0.7], [0.1, 0.2, 0.3]])
    statistics.learn(match, prob)
    return statistics


def test_shares_and_thresholds_by_hand() -> None:
    statistics = learnt()
    assert statistics.alphas() == pytest.approx([1 / 3, 1.0, 0.0])
    middle, *unknown = statistics.thresholds()
    assert middle == pytest.approx((0.9 + 0.3) / 2)
    assert unknown == [None, None]  # one kind has not occurred


def test_older_steps_count_less() -> None:
    statistics = learnt()
    statistics.learn(torch.tensor([[True], [False], [False]]), torch.tensor([[0.8], [0.3], [0.5]]))
    assert statistics.alphas() == pytest.approx([1.5 / 2.5, 1.5 / 2.5, 0.0])
    hits, misses = (0.5 * 0.9 + 0.8) / 1.5, (0.5 * 0.6) / 1.0
    assert statistics.thresholds()[0] == pytest.approx((hits + misses) / 2)
    assert statistics.thresholds()[1] == pytest.approx((0.5 * 1.8 / 1.5 + 0.3) / 2)


def test_nothing_is_known_at_first_and_after_a_reset() -> None:
    statistics = learnt()
    assert not statistics.empty
    statistics.reset()
    assert statistics.empty
    assert statistics.alphas() == [0.0, 0.0, 0.0]
    assert statistics.thresholds() == [None, None, None]


def test_the_plan_is_the_best_of_all() -> None:
    alphas = torch.rand(20, 5, generator=torch.Generator().manual_seed(3)).tolist()
    lengths_seen = set()
    for row in alphas:
        plan = best_plan(row, 6, range(0, 8))
        value = {
            (exit_layer, length): (1 - a ** (length + 1)) / (1 - a) / (length * exit_layer + 6)
            for exit_layer, a in enumerate(row, start=1)
            for length in range(8)
        }
        assert plan.value == pytest.approx(max(value.values()))
        assert plan.value == pytest.approx(value[plan.exit_layer, plan.length])
        lengths_seen.add(plan.length)
    assert len(lengths_seen) > 2


def test_ties_go_to_the_earliest_exit_and_the_shortest_draft() -> None:
    assert best_plan([0.0, 0.0, 0.0], 4, range(0, 5))[:2] == (1, 0)
    assert best_plan([0.0, 0.0], 3, range(2, 5))[:2] == (1, 2)


def test_a_perfect_exit_drafts_as_much_as_it_may() -> None:
    assert best_plan([0.1, 1.0, 1.0], 8, range(0, 11))[:2] == (2, 10)


@pytest.mark.parametrize("head", [0.0, 8.0])
def test_a_draft_must_pay_for_itself(head: float) -> None:
    """One token by exit e pays off once alpha exceeds its share of a plain step's cost."""
    needed = (2 + head) / (10 + head)
    assert best_plan([0.0, needed + 0.01], 10, range(0, 2), head=head)[:2] == (2, 1)
    assert best_plan([0.0, needed - 0.01], 10, range(0, 2), head=head).length == 0


def test_the_heads_weight_in_layers() -> None:
    slots = tiny_target().slots()
    layer = sum(slot.numel() for name, slot in slots.items() if ".layers.0." in name and slot.dim() == 2)
    assert head_in_layers(tiny_target().spec) == pytest.approx(slots["lm_head.weight"].numel() / layer)


@pytest.mark.parametrize("chunk_rows", [1, 3, 64])
def test_reading_out_in_chunks_is_the_head_and_its_softmax(chunk_rows: int) -> None:
    decoder = tiny_target()
    states = torch.randn(7, decoder.spec.hidden_size, generator=torch.Generator().manual_seed(0))
    token, prob = read_out(decoder, states, chunk_rows=chunk_rows)
    best = decoder.head(decoder.final_norm(states)).softmax(-1).max(-1)
    assert token.tolist() == best.indices.tolist()
    torch.testing.assert_close(prob, best.values)


# ---- two reasons to stop


def block(first: int, prob: float, **signals: Any) -> Block:
    return Block(first, [first], prob=torch.tensor([prob]), **signals)


def test_both_must_want_more() -> None:
    stop = ThresholdStop(ConfidenceStop(10, threshold=0.3), 0.6)
    stop.start_step(10)
    assert stop.more(block(0, 0.7))
    assert not stop.more(block(1, 0.5))  # the exit's threshold
    strict = ThresholdStop(ConfidenceStop(10, threshold=0.9), 0.6)
    strict.start_step(10)
    assert not strict.more(block(0, 0.7))  # the controller's


def test_exactly_the_threshold_goes_on() -> None:
    assert ThresholdStop(FixedLength(4), 0.75).more(block(0, 0.75))


def test_the_controllers_cap_holds() -> None:
    assert ThresholdStop(FixedLength(4), 0.5).start_step(9) == 4


class Asked(ControllerBase):
    """Wants blocks of three and remembers them."""

    def __init__(self) -> None:
        super().__init__(10, block_size=3)
        self.blocks: list[Block] = []

    def more(self, block: Block) -> bool:
        self.blocks.append(block)
        return True


def test_a_controller_is_shown_blocks_of_its_own_size() -> None:
    controller = Asked()
    stop = ThresholdStop(controller, 0.1)
    assert stop.block_size == 1
    stop.start_step(10)
    assert all(stop.more(block(i, 0.5 + i / 100)) for i in range(7))
    assert [list(seen.tokens) for seen in controller.blocks] == [[0, 1, 2], [3, 4, 5]]
    assert [seen.first for seen in controller.blocks] == [0, 3]
    assert controller.blocks[1].prob is not None
    assert controller.blocks[1].prob.tolist() == pytest.approx([0.53, 0.54, 0.55])
    stop.start_step(10)  # what was left over belongs to the step before
    assert all(stop.more(block(i, 0.5)) for i in range(3))
    assert list(controller.blocks[2].tokens) == [0, 1, 2]


def test_what_ends_a_draft_without_a_question_is_shown_to_the_controller() -> None:
    told: list[Block] = []
    controller = Asked()
    controller.ended = told.append  # type: ignore[method-assign]
    stop = ThresholdStop(controller, 0.1)
    stop.start_step(10)
    assert all(stop.more(block(i, 0.5)) for i in range(4))
    stop.ended(block(4, 0.5))  # the cap
    assert [list(seen.tokens) for seen in told] == [[3, 4]]
    stop.start_step(10)
    assert stop.more(block(0, 0.5))
    assert not stop.more(block(1, 0.01))  # its own threshold
    assert [list(seen.tokens) for seen in told] == [[3, 4], [0, 1]]
    assert stop.score == pytest.approx(0.01)


def test_joined_blocks_have_the_signals_that_all_had() -> None:
    whole = joined([block(0, 0.5, hidden=torch.zeros(1, 4)), block(1, 0.6, hidden=torch.ones(1, 4))])
    assert whole.hidden is not None
    assert whole.hidden.shape == (2, 4)
    assert whole.entropy is None
