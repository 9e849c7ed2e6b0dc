"""Warped probabilities as the transformers library computes them, and draws that can be replayed."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from specbench.decoding.sampling import GeneratorDraws, probabilities
from specbench.types import Sampling

CASES = [(1.0, 0, 1.0), (0.7, 0, 1.0), (1.3, 5, 1.0), (1.0, 0, 0.9), (0.6, 20, 0.95), (1.0, 1, 1.0), (1.0, 0, 0.01)]


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), CASES)
def test_probabilities_are_the_librarys(temperature: float, top_k: int, top_p: float) -> None:
    logits = 3 * torch.randn(6, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p < 1.0:
        expected = TopPLogitsWarper(top_p)(None, expected)
    found = probabilities(logits, Sampling(temperature, top_k, top_p))
    torch.testing.assert_close(found, expected.softmax(-1), rtol=1e-12, atol=1e-12)


def test_half_precision_logits_give_float32_probabilities() -> None:
    assert probabilities(torch.zeros(4, dtype=torch.bfloat16), Sampling(1.0)).dtype == torch.float32


def test_a_top_k_beyond_the_vocabulary_cuts_nothing() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0])
    assert torch.equal(probabilities(logits, Sampling(1.0, top_k=9)), probabilities(logits, Sampling(1.0)))


def test_draws_follow_their_weights() -> None:
    draws, weights = GeneratorDraws(3), torch.tensor([0.0, 2.0, 1.0, 0.0, 5.0, 0.0])
    counts = [0] * 6
    for _ in range(4000):
        counts[draws.categorical(weights)] += 1
    assert counts[0] == counts[3] == counts[5] == 0
    assert chisquare([counts[1], counts[2], counts[4]], [1000, 500, 2500]).pvalue > 1e-3
    heads = sum(draws.bernoulli(0.3) for _ in range(4000))
    assert chisquare([heads, 4000 - heads], [1200, 2800]).pvalue > 1e-3
    assert draws.bernoulli(1.0)
    assert not draws.bernoulli(0.0)


def test_one_seed_is_one_sequence_of_draws() -> None:
    def sequence(seed: int) -> list[int]:
        draws = GeneratorDraws(seed)
        return [draws.categorical(torch.ones(100)) for _ in range(8)]

    torch.manual_seed(5)
    first = sequence(7)
    torch.manual_seed(6)  # the global generator plays no part
    assert sequence(7) == first
    assert sequence(8) != first
