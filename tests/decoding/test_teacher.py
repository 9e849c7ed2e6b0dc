"""Judging a divergence: AR's own answer agrees with itself, and a gap is what float32 says."""

from __future__ import annotations

import pytest
import torch

from specbench.decoding.target import Target
from specbench.decoding.teacher import logit_gap, teacher_agreement
from specbench.models.tiny import SPEC, target_weights
from tests.decoding.tinies import PROMPT, ar_tokens, loaded, tiny_target


@pytest.mark.parametrize("prompt", [PROMPT, (65,)])
@pytest.mark.parametrize("count", [1, 70])
def test_ar_agrees_with_itself_and_less_when_changed(prompt: tuple[int, ...], count: int) -> None:
    target, answer = Target(tiny_target()), ar_tokens(70, prompt)[:count]
    assert teacher_agreement(target, prompt, answer) == 1.0
    changed = [*answer[:-1], (answer[-1] + 1) % 256]
    assert teacher_agreement(target, prompt, changed) == pytest.approx(1 - 1 / count)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gap_is_the_float32_difference(dtype: torch.dtype) -> None:
    decoder = tiny_target("plain", dtype)
    wide = tiny_target()
    if dtype == torch.bfloat16:  # the same rounded weights in float32
        wide = loaded(SPEC, {name: w.bfloat16().float() for name, w in target_weights().items()})
    logits = wide.forward(torch.tensor([PROMPT])).logits[0, -1]
    assert logit_gap(decoder, PROMPT, 3, 200) == pytest.approx(float((logits[3] - logits[200]).abs()), abs=1e-4)
    assert logit_gap(decoder, PROMPT, 5, 5) == 0.0
