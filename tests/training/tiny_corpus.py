"""Answers of the tiny target with its states, made by our own decoder in a moment."""

from __future__ import annotations

import functools

import torch

from specbench.config import DistilConfig
from specbench.models.batch import BatchRequest, answer_batch
from specbench.models.decoder import Decoder
from specbench.training.corpus import Example
from tests.decoding.tinies import tiny_target

SETTINGS = DistilConfig(
    layers=[0],
    vocab_size=None,
    divergence="kl",
    epochs=4,
    batch_tokens=256,
    learning_rate=1e-3,
    warmup=0.05,
    weight_decay=0.0,
    clip=1.0,
    held_out_every=6,
    held_out=24,
    num_draft_tokens=3,
    evaluate_every=20,
    checkpoint_every=10,
)


@torch.no_grad()
def answered(decoder: Decoder, prompt: torch.Tensor, count: int, *, source: str = "user") -> Example:
    """The greedy answer of `count` tokens."""
    ids = prompt
    for _ in range(count):
        out = decoder.forward(ids[None], logits="last")
        assert out.logits is not None
        ids = torch.cat([ids, out.logits[0, -1].argmax()[None]])
    out = decoder.forward(ids[None, :-1])
    assert out.logits is not None
    assert out.normed is not None
    states, log_z = out.normed[0, -count:].half(), out.logits[0, -count:].logsumexp(-1)
    return Example(source, True, prompt, ids[-count:], states, log_z)


@functools.cache
def corpus(variant: str = "plain", count: int = 200, tokens: int = 16) -> tuple[Example, ...]:
    """Greedy answers to random prompts of 3 to 8 tokens, of two sources."""
    draws = torch.Generator().manual_seed(5)
    prompts = [torch.randint(256, (3 + i % 6,), generator=draws) for i in range(count)]
    requests = [BatchRequest(prompt.tolist(), tokens) for prompt in prompts]
    answers = answer_batch(tiny_target(variant), requests, stop_ids=[], seed=0, size=64)
    return tuple(
        Example("even" if i % 2 == 0 else "odd", True, prompt, torch.tensor(one.tokens), one.states, one.log_z)
        for i, (prompt, one) in enumerate(zip(prompts, answers, strict=True))
    )
