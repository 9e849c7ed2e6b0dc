"""Answers decoded side by side are those of one after another, whoever shares the batch."""

from __future__ import annotations

import pytest
import torch

from specbench.models.batch import BatchRequest, answer_batch
from tests.decoding.tinies import ar_tokens, tiny_target
from tests.models.pairs import decoder_of, library_model

PROMPTS = [(256, *range(40 + i, 43 + 2 * i)) for i in range(9)]


def greedy(budget: int = 20) -> list[BatchRequest]:
    return [BatchRequest(prompt, budget + i % 3) for i, prompt in enumerate(PROMPTS)]


@pytest.mark.parametrize("size", [1, 4, 32])
def test_greedy_answers_are_those_of_decoding_alone(size: int) -> None:
    """Prompts of different lengths, answers that end at different times, and places that are taken over."""
    stop = ar_tokens(20, PROMPTS[4])[7]
    found = answer_batch(tiny_target(), greedy(), stop_ids=[stop], seed=0, size=size)
    lengths = set()
    for i, (prompt, answer) in enumerate(zip(PROMPTS, found, strict=True)):
        alone = ar_tokens(20 + i % 3, prompt)
        end = alone.index(stop) + 1 if stop in alone else len(alone)
        assert answer.tokens == alone[:end]
        lengths.add(len(answer.tokens))
    assert len(lengths) >= 3


def test_states_and_normalisers_are_those_of_one_pass() -> None:
    answers = answer_batch(tiny_target(), greedy(), stop_ids=[], seed=0, size=4)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        out = tiny_target().forward(torch.tensor([[*prompt, *answer.tokens[:-1]]]))
        count = len(answer.tokens)
        assert answer.states.dtype == torch.float16
        assert torch.allclose(answer.states.float(), out.normed[0, -count:], atol=5e-3)
        assert torch.allclose(answer.log_z, out.logits[0, -count:].logsumexp(-1), atol=1e-3)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_other_families_with_biases_and_norms(family: str) -> None:
    decoder = decoder_of(library_model(family))
    prompts = [[3, 5, 7, 11], [2], [9, 8]]
    found = answer_batch(decoder, [BatchRequest(prompt, 6) for prompt in prompts], stop_ids=[], seed=0, size=2)
    for prompt, answer in zip(prompts, found, strict=True):
        ids = list(prompt)
        for _ in range(6):
            ids.append(int(decoder.forward(torch.tensor([ids])).logits[0, -1].argmax()))
        assert list(answer.tokens) == ids[len(prompt) :]


def test_sampling_repeats_with_its_seed_and_follows_the_target() -> None:
    requests = [BatchRequest(PROMPTS[0][:3], 1, temperature=1.0)] * 300
    first, again, other = (
        [answer.tokens[0] for answer in answer_batch(tiny_target(), requests[:count], stop_ids=[], seed=seed, size=100)]
        for seed, count in ((1, 300), (1, 100), (2, 100))
    )
    assert first[:100] == again != other
    likely = tiny_target().forward(torch.tensor([PROMPTS[0][:3]])).logits[0, -1].softmax(-1).topk(4)
    for count in (1, 4):  # each share within four standard deviations
        expected = float(likely.values[:count].sum())
        found = sum(token in likely.indices[:count].tolist() for token in first) / len(first)
        assert abs(found - expected) < 4 * (expected * (1 - expected) / len(first)) ** 0.5
        assert 0.02 < expected < 0.98


def test_greedy_and_sampled_answers_share_a_batch() -> None:
    requests = [BatchRequest(PROMPTS[i % 3], 12, temperature=i % 2 * 1.0) for i in range(6)]
    found = answer_batch(tiny_target(), requests, stop_ids=[], seed=0)
    for i in (0, 2, 4):
        assert found[i].tokens == ar_tokens(12, PROMPTS[i % 3])
    assert any(found[i].tokens != ar_tokens(12, PROMPTS[i % 3]) for i in (1, 3, 5))
