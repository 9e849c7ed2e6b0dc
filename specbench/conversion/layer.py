"""What a conversion starts from, one attention layer in float64, and the layer whose rotation is already decided.

H query heads, K key/value heads, G = H / K, width d of a head, p = d / 2 rotated pairs (pair l = dimensions l and
l + p), hidden size D. Weights are [out, in].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.models.decoder import Decoder
from specbench.types import ModelError


@dataclass(frozen=True)
class Projection:
    """y = weight x + bias."""

    weight: Tensor  # [m, D]
    bias: Tensor | None = None  # [m]

    @property
    def rows(self) -> int:
        return self.weight.shape[0]

    def take(self, rows: Tensor) -> Projection:
        """Some of the outputs, by index [k] or by a matrix [k, m] that mixes them."""
        if rows.dtype == torch.int64:
            return Projection(self.weight[rows], None if self.bias is None else self.bias[rows])
        return Projection(rows @ self.weight, None if self.bias is None else rows @ self.bias)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class AttentionWeights:
    """Projections of one layer: q [H d, D], k and v [K d, D]; `qk_norm`: norm weights [d] of queries and of keys."""

    heads: int
    kv_heads: int
    width: int
    q: Projection
    k: Projection
    v: Projection
    qk_norm: tuple[Tensor, Tensor] | None = None
    eps: float = 0.0

    @property
    def groups(self) -> int:
        return self.heads // self.kv_heads

    @property
    def pairs(self) -> int:
        return self.width // 2

    @property
    def hidden_size(self) -> int:
        return self.q.weight.shape[1]


@dataclass(frozen=True)
class Split:
    """A layer in which some key dimensions rotate, in heads of their own, and all others (m rows) do not any more.

    Query head i scores nope key rows through `readers[i // G]` and rotated head i // (H / N). `rope_index` [N, e / 2]:
    which of the p frequencies turns each pair. `rotate_nope`: the nope keys rotate after all, at their own places
    (converter svd, without rotated heads).
    """

    weights: AttentionWeights
    q_nope: Projection  # [H n, D]
    q_rope: Projection  # [H e, D]
    k_rope: Projection  # [N e, D]
    k_nope: Projection  # [m, D]
    readers: Tensor  # [K, n, m]
    rope_index: Tensor  # [N, e / 2] int64
    rotate_nope: bool = False

    @property
    def nope_dim(self) -> int:
        return self.readers.shape[1]

    @property
    def rope_heads(self) -> int:
        return self.rope_index.shape[0]

    @property
    def rope_dim(self) -> int:
        return 2 * self.rope_index.shape[1]


def attention_weights(decoder: Decoder, layer: int) -> AttentionWeights:
    """One layer of a decoder with grouped-query attention, upcast to float64.

    Raises ModelError where the decoder's attention is not of that kind.
    """
    spec = decoder.spec
    if spec.mla is not None:
        raise ModelError("this model's attention is latent already; only grouped-query attention can be converted")
    named = {name: tensor.detach().double() for name, tensor in decoder.layers[layer].attention.slots("").items()}

    def projection(name: str) -> Projection:
        return Projection(named[f"{name}_proj.weight"], named.get(f"{name}_proj.bias"))

    norms = (named["q_norm.weight"], named["k_norm.weight"]) if spec.qk_norm else None
    q, k, v = (projection(name) for name in "qkv")
    return AttentionWeights(spec.num_heads, spec.num_kv_heads, spec.head_dim, q, k, v, norms, spec.norm_eps)
