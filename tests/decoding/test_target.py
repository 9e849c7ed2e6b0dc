"""What a target has read stays there: checks after an answer need not read its prompt again."""

from __future__ import annotations

import torch

from specbench.decoding.loop import SpeculativeDecoding
from specbench.decoding.target import Target
from specbench.methods.ar import Autoregressive
from specbench.types import Draft, Needs, Sampling
from tests.decoding.tinies import PROMPT, tiny_target


def counted(target: Target, monkeypatch) -> list[int]:
    """Rows of every forward pass from now on."""
    rows: list[int] = []
    forward = target.decoder.forward

    def noted(inputs, *args, **options):
        rows.append(inputs.shape[1])
        return forward(inputs, *args, **options)

    monkeypatch.setattr(target.decoder, "forward", noted)
    return rows


def next_logits(target: Target) -> torch.Tensor:
    nothing = Draft(tokens=torch.zeros(0, dtype=torch.int64))
    return target.verify(PROMPT[-1], nothing, Needs(logits=True), greedy=False).logits


@torch.inference_mode()
def test_a_prompt_that_was_just_answered_is_not_read_again(monkeypatch):
    target = Target(tiny_target())
    target.prefill(PROMPT, capacity=40)
    expected = next_logits(target)
    SpeculativeDecoding(target, Autoregressive(), Sampling(0.0, 0, 1.0)).generate(PROMPT, max_new_tokens=12, seed=0)
    rows = counted(target, monkeypatch)
    target.prefill_again(PROMPT, capacity=len(PROMPT) + 12)
    assert rows == []
    assert target.cache.length == len(PROMPT) - 1
    assert torch.equal(next_logits(target), expected)


@torch.inference_mode()
def test_any_other_prompt_is_read_and_so_is_one_whose_rows_are_gone(monkeypatch):
    target = Target(tiny_target())
    target.prefill(PROMPT, capacity=40)
    rows = counted(target, monkeypatch)
    target.prefill_again((9, *PROMPT[1:]), capacity=40)
    target.prefill_again(PROMPT, capacity=40)
    target.reserve(40)
    target.prefill_again(PROMPT, capacity=40)
    assert rows == [len(PROMPT) - 1] * 3
