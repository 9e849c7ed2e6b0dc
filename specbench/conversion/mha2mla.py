"""MHA2MLA: some pairs of each key head keep rotating, the others are compressed with the values."""

from __future__ import annotations

import torch
from torch import Tensor

from specbench.conversion.layer import AttentionWeights, Split
from specbench.conversion.statistics import LayerStatistics
from specbench.types import ConfigError


def default_rope_dim(width: int) -> int:
    """A quarter of the head, an even number."""
    return max(2, width // 8 * 2)


def split(weights: AttentionWeights, statistics: LayerStatistics, *, rope_dim: int, select: str) -> Split:
    """e = `rope_dim` dimensions of every key head rotate; its query heads use the same ones.

    Rows of a head keep their order: first halves ascending, then their partners; nope rows ascending.
    """
    if rope_dim > weights.width or rope_dim % 2:
        raise ConfigError(
            f"method.rope_dim={rope_dim}: legal for this model with mha2mla: even numbers from 2 to {weights.width}"
        )
    chosen = select_pairs(weights, statistics, count=rope_dim // 2, select=select)
    rope = torch.cat([chosen, chosen + weights.pairs], dim=1)  # [K, e] dimensions of a head
    every = torch.ones(weights.kv_heads, weights.width, dtype=torch.bool, device=rope.device)
    nope = every.scatter(1, rope, False).nonzero()[:, 1].view(weights.kv_heads, -1)  # [K, n]
    n = nope.shape[1]
    own = torch.eye(weights.kv_heads * n, dtype=weights.q.weight.dtype, device=rope.device)
    return Split(
        weights=weights,
        q_nope=weights.q.take(_rows(nope, weights, weights.groups)),
        q_rope=weights.q.take(_rows(rope, weights, weights.groups)),
        k_rope=weights.k.take(_rows(rope, weights, 1)),
        k_nope=weights.k.take(_rows(nope, weights, 1)),
        readers=own.view(weights.kv_heads, n, weights.kv_heads * n),
        rope_index=chosen,
    )


def select_pairs(weights: AttentionWeights, statistics: LayerStatistics, *, count: int, select: str) -> Tensor:
    """The pairs [K, count] of each key head that rotate, ascending.

    `2norm`: those whose queries and keys are largest, by the product of their mean 2-norms summed over the group;
    `high` and `low`: the fastest and the slowest; `uniform`: evenly spaced.
    """
    heads, pairs, device = weights.kv_heads, weights.pairs, weights.q.weight.device
    if select == "2norm":
        queries = statistics.q_sizes.view(heads, weights.groups, pairs).sum(1)
        order = (queries * statistics.k_sizes).argsort(dim=1, descending=True, stable=True)
        return order[:, :count].sort(dim=1).values
    steps = torch.arange(count, device=device)
    places = {"high": steps, "low": pairs - count + steps, "uniform": steps * pairs // max(count, 1)}[select]
    return places.expand(heads, count).contiguous()


def _rows(dims: Tensor, weights: AttentionWeights, repeat: int) -> Tensor:
    """Row numbers of dimensions [K, k] in a projection of K * repeat heads."""
    spread = dims.repeat_interleave(repeat, dim=0)
    first = torch.arange(spread.shape[0], device=dims.device)[:, None] * weights.width
    return (first + spread).flatten()
