"""From logits to probabilities, and the random draws of one sample."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from specbench.types import Sampling


class Draws(Protocol):
    """The only source of randomness in drafting and verification, so that tests can enumerate every outcome."""

    def bernoulli(self, p: float) -> bool:
        """True with probability p."""

    def categorical(self, p: Tensor) -> int:
        """An index of p [V] drawn with probability p / p.sum()."""


class GeneratorDraws:
    """Draws from one seeded CPU generator, so that a sample can be replayed alone and on any device."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def _uniform(self) -> float:
        return float(torch.rand((), generator=self._generator, dtype=torch.float64))

    def bernoulli(self, p: float) -> bool:
        return self._uniform() < p

    def categorical(self, p: Tensor) -> int:
        cumulative = p.double().cumsum(-1)
        point = self._uniform() * cumulative[-1]
        index = int(torch.searchsorted(cumulative, point, right=True))
        return min(index, int(p.nonzero()[-1]))


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """Distributions [..., V] after temperature, then top-k, then top-p (at least float32).

    A token stays in the top-p set while the mass before it is below top_p. Source: the order of the
    transformers library's warpers.
    """
    scaled = (logits if logits.dtype == torch.float64 else logits.float()) / sampling.temperature
    if 0 < sampling.top_k < scaled.shape[-1]:
        kth = scaled.topk(sampling.top_k, dim=-1).values[..., -1:]
        scaled = scaled.masked_fill(scaled < kth, float("-inf"))
    probs = scaled.softmax(-1)
    return _nucleus(probs, sampling.top_p) if sampling.top_p < 1.0 else probs


def _nucleus(probs: Tensor, top_p: float) -> Tensor:
    ordered, index = probs.sort(dim=-1, descending=True, stable=True)
    kept = ordered * (ordered.cumsum(-1) - ordered < top_p)
    kept = kept / kept.sum(-1, keepdim=True)
    return torch.zeros_like(probs).scatter(-1, index, kept)
