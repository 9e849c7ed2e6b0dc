"""Sequences on their way through a model, layer by layer: the activations of one layer are all that is held."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specbench.models.attention import GroupedQueryAttention, rms_norm
from specbench.models.decoder import Decoder
from specbench.models.latent import LatentAttention
from specbench.models.layer import Layer

Attention = GroupedQueryAttention | LatentAttention


@dataclass
class Walk:
    """Sequences `ids` [S, T] of equal length in front of one layer of `decoder`; `batch` go through at a time."""

    decoder: Decoder
    ids: Tensor
    batch: int
    hidden: Tensor = field(init=False)  # [S, T, D] the residual stream

    def __post_init__(self) -> None:
        with torch.no_grad():
            self.hidden = self.decoder.embed(self.ids.to(self.decoder.device))

    def batches(self) -> Iterator[slice]:
        """The sequences, `batch` at a time."""
        for first in range(0, len(self.ids), self.batch):
            yield slice(first, first + self.batch)

    @torch.no_grad()
    def inputs(self, layer: Layer) -> Tensor:
        """What the layer's attention reads [S, T, D]: the stream after the input norm."""
        eps = self.decoder.spec.norm_eps
        return torch.cat([rms_norm(self.hidden[part], layer.norms[0], eps) for part in self.batches()])

    @torch.no_grad()
    def attend(self, attention: Attention, inputs: Tensor) -> Tensor:
        """What an attention makes of inputs [S, T, D]: its outputs after the output projection, [S, T, D]."""
        rows = self.decoder.batch_rows(inputs)
        return torch.cat([attention(inputs[part], rows, None) for part in self.batches()])

    @torch.no_grad()
    def advance(self, layer: Layer, attended: Tensor) -> None:
        """Go on to the next layer with these outputs of the attention."""
        for part in self.batches():
            self.hidden[part] += attended[part]
            normed = rms_norm(self.hidden[part], layer.norms[1], self.decoder.spec.norm_eps)
            self.hidden[part] += layer.mlp(normed)


@torch.no_grad()
def perplexity(decoder: Decoder, ids: Tensor) -> float:
    """exp of the mean cross entropy of the tokens of ids [S, T] after their first; tokens that a reduced head lacks are
    left out."""
    losses = []
    for sequence in ids.to(decoder.device):
        logits = decoder.forward(sequence[None, :-1]).logits
        assert logits is not None
        losses.append(torch.nn.functional.cross_entropy(logits[0].float(), sequence[1:], reduction="none"))
    every = torch.cat(losses)
    return float(every[every.isfinite()].mean().exp())
