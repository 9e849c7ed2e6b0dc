"""The replay of held-out answers says what real greedy speculation does, token for token."""

from __future__ import annotations

import pytest
import torch

from specbench.controllers.fixed import FixedLength
from specbench.methods.sps import SpeculativeSampling
from specbench.training.replay import Acceptance, agreement, held_out_acceptance, replay
from tests.decoding.tinies import decode, tiny_draft, tiny_target
from tests.training.tiny_corpus import answered

TOKENS = 40


def test_chains_end_where_the_draft_is_wrong():
    # a step of two accepted and one wrong, one of nothing accepted, one of three, and a last root without a draft
    agrees = [True, True, False, False, True, True, True, False, True]
    assert replay(agrees, 3) == Acceptance(drafted=3 + 3 + 3 + 0, accepted=2 + 0 + 3, emitted=9, steps=4)


@pytest.mark.parametrize(
    "length", [1, 4, pytest.param(2, marks=pytest.mark.slow), pytest.param(9, marks=pytest.mark.slow)]
)
def test_replay_equals_real_speculation(length: int) -> None:
    drafter = SpeculativeSampling(tiny_draft(), FixedLength(length))
    total, real = Acceptance(), Acceptance()
    for start in range(4):
        prompt = torch.arange(20 + start, 28 + start)
        example = answered(tiny_target(), prompt, TOKENS)
        total += replay(agreement(tiny_draft(), example), length)
        found = decode(drafter).generate(prompt.tolist(), max_new_tokens=TOKENS, seed=0)
        assert list(found.tokens) == example.answer.tolist()
        for step in found.steps:
            real += Acceptance(step.num_draft_tokens, step.num_accepted, step.num_emitted, 1)
    assert total == real
    assert 0 < total.accepted < total.drafted


def test_sources_are_kept_apart() -> None:
    examples = [
        answered(tiny_target(), torch.arange(30, 36), 12, source="a"),
        answered(tiny_target(), torch.arange(60, 66), 12, source="b"),
    ]
    found = held_out_acceptance(tiny_draft(), examples, 2)
    assert found["all"] == found["a"] + found["b"]
    assert found["all"].emitted == 24
    assert found["all"].mat == 24 / found["all"].steps
