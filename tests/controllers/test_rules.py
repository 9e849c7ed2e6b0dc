"""Rules with a score and a threshold: what each thinks of a block, and how thresholds move."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_curve

from specbench.controllers.adaptive import AdaptiveThreshold, DraftVerify
from specbench.controllers.confidence import ConfidenceStop, DynamicConfidence, cheapest_threshold
from specbench.decoding.protocol import Block
from specbench.decoding.target import Target
from specbench.methods.build import Parts, build_controller
from specbench.types import Sampling, Verdict
from tests.composed import composed
from tests.decoding.tinies import tiny_target

GREEDY = SimpleNamespace(sampling=Sampling())
DRAWN = SimpleNamespace(sampling=Sampling(temperature=1.0))


def verdict(accepted: int) -> Verdict:
    return Verdict(tuple(range(accepted)), (0,) * (accepted + 1), accepted, accepted, 0)


def one(**signals: Any) -> Block:
    return Block(0, [7], **{name: torch.tensor([value], dtype=torch.float64) for name, value in signals.items()})


def configured(name: str, *overrides: str) -> Any:
    words = [f"method.controller.{override}" for override in overrides]
    method = composed("model=tiny", "method=sps", f"method/controller={name}", *words).method
    return build_controller(method, Parts(Target(tiny_target()), Sampling()))


# ---- confidence


def test_kangaroo_looks_at_the_top_probability_not_at_the_tokens() -> None:
    controller = configured("kangaroo")
    assert controller.signals == {"topk"}
    assert controller.start_step(50) == 6
    sure = Block(0, [7], prob=torch.tensor([0.1]), topk=torch.tensor([[0.7, 0.1]]))
    unsure = Block(1, [7], prob=torch.tensor([0.9]), topk=torch.tensor([[0.5, 0.4]]))
    assert controller.more(sure)
    assert controller.score == pytest.approx(0.7)
    assert not controller.more(unsure)


def test_the_score_is_that_of_the_last_block() -> None:
    controller = ConfidenceStop(threshold=0.5)
    assert controller.score is None
    assert controller.more(one(prob=0.9))
    assert controller.score == pytest.approx(0.9)
    assert not controller.more(one(prob=0.2))
    assert controller.score == pytest.approx(0.2)


# ---- the fitted threshold


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=2, max_size=30), st.sampled_from([0.5, 1.0, 3.0]))
def test_cheapest_threshold_is_the_librarys(pairs: list[tuple[int, bool]], miss_cost: float) -> None:
    """Against scikit-learn's curve, from which the transformers library takes the first minimum."""
    history = [(value / 8, match) for value, match in pairs]
    if len({match for _, match in history}) < 2:
        return
    probs, matches = zip(*history, strict=True)
    false_positives, true_positives, thresholds = roc_curve(matches, probs, drop_intermediate=False)
    first = int(np.argmin(false_positives + miss_cost * (1 - true_positives)))
    assert cheapest_threshold(history, miss_cost) == min(1.0, thresholds[first])


def test_cheapest_threshold_by_hand() -> None:
    history = [(0.9, True), (0.8, True), (0.5, False), (0.3, True), (0.2, False)]
    # 0.8 lets no miss through and loses one match of three; 0.3 loses none and lets one of two misses through.
    assert cheapest_threshold(history, 3.0) == 0.3
    assert cheapest_threshold(history, 1.0) == 0.8
    assert cheapest_threshold([(1.0, False), (0.5, True)], 0.1) == 1.0


def test_dynamic_confidence_learns_from_what_was_verified_only() -> None:
    controller = DynamicConfidence(num_draft_tokens=4, threshold=0.4)
    for _ in range(2):
        controller.start_step(10)
        for prob in (0.9, 0.8, 0.7):
            assert controller.more(one(prob=prob))
        controller.ended(one(prob=0.45))
        controller.end_step(4, verdict(2))  # 0.7 was rejected; 0.45 came after it and counts for nothing
    assert controller.limit == 0.8
    assert len(controller._history) == 6
    controller.start_step(10)
    assert not controller.more(one(prob=0.75))
    controller.reset()
    assert controller.limit == 0.4


def test_dynamic_confidence_waits_for_enough_of_both_kinds() -> None:
    controller = DynamicConfidence(threshold=0.4)
    for accepted, expected in ((3, 0.4), (3, 0.4), (2, 0.5)):
        controller.start_step(10)
        for prob in (0.9, 0.5, 0.45):
            controller.more(one(prob=prob))
        controller.end_step(3, verdict(accepted))
        assert (controller.limit == 0.4) == (expected == 0.4)


def test_dynamic_confidence_forgets_what_is_too_long_ago() -> None:
    controller = DynamicConfidence(threshold=0.4, max_history=6)
    for prob, accepted in ((0.2, 1), (0.9, 1), (0.8, 1), (0.7, 0), (0.6, 1), (0.5, 1), (0.3, 0)):
        controller.start_step(10)
        controller.ended(one(prob=prob))
        controller.end_step(1, verdict(accepted))
    assert [prob for prob, _ in controller._history] == [0.9, 0.8, 0.7, 0.6, 0.5, 0.3]


# ---- entropy


def test_svip_stops_where_its_paper_says() -> None:
    controller = configured("svip")
    assert controller.signals == {"raw_entropy"}
    border = 0.3**2 / 0.15  # 0.6 nats
    assert controller.more(one(raw_entropy=border - 1e-6))
    assert not controller.more(one(raw_entropy=border + 1e-6))
    controller.begin(GREEDY)
    controller.end_step(5, verdict(0))
    assert controller.limit == 0.7  # nothing moves


def test_entropy_of_the_warped_distribution_is_another_signal() -> None:
    controller = configured("svip", "distribution=warped")
    assert controller.signals == {"entropy"}
    assert not controller.more(one(entropy=2.0))


def test_adaedl_bounds_the_acceptance_by_the_entropy() -> None:
    controller = configured("adaedl")
    controller.begin(GREEDY)
    controller.more(one(raw_entropy=0.8))
    assert controller.score == pytest.approx(1 - math.sqrt(0.2 * 0.8))
    before = controller.limit
    controller.end_step(4, verdict(0))
    assert controller.limit > before


# ---- thresholds that move


def test_a_threshold_moves_as_written_down() -> None:
    moving = AdaptiveThreshold(0.8, target=0.9, step=0.01, acceptance_memory=0.5, threshold_memory=0.9)
    moving.learn(4, 4, at_cap=False)  # acceptance 0.5: below the target
    assert moving.value == pytest.approx(0.9 * 0.8 + 0.1 * 0.81)
    for _ in range(6):
        moving.learn(4, 4, at_cap=False)
    assert moving.acceptance > 0.9
    before = moving.value
    moving.learn(4, 4, at_cap=False)
    assert moving.value == pytest.approx(0.9 * before + 0.1 * (before - 0.01))


def test_a_threshold_does_not_fall_after_a_draft_that_the_cap_ended() -> None:
    moving = AdaptiveThreshold(0.8, target=0.5, step=0.01, acceptance_memory=0.0, threshold_memory=0.0)
    moving.learn(4, 4, at_cap=True)
    assert moving.value == 0.8
    moving.learn(4, 0, at_cap=True)
    assert moving.value == pytest.approx(0.81)


def test_draft_and_verify_starts_lower_when_sampling_and_keeps_what_it_learnt_until_reset() -> None:
    controller = DraftVerify()
    controller.begin(GREEDY)
    assert controller.limit == 0.8
    controller.end_step(0, verdict(0))
    assert controller.limit == 0.8  # nothing drafted, nothing learnt
    controller.end_step(3, verdict(0))
    learnt = controller.limit
    assert learnt > 0.8
    controller.begin(GREEDY)
    assert controller.limit == learnt
    controller.reset()
    controller.begin(DRAWN)
    assert controller.limit == 0.6
    assert controller.more(one(prob=0.6))
    assert not controller.more(one(prob=0.59))


def test_an_adaptive_rule_can_be_held_still() -> None:
    controller = configured("draft_verify", "adaptive=false")
    controller.begin(GREEDY)
    controller.end_step(3, verdict(0))
    assert controller.limit == 0.8
