"""Keys and values from one latent, keys rotated after they are expanded: no rotation is given up, nothing absorbed.

The reference without loss of rotation; grouped per-head variants of it are known as Palu.
"""

from __future__ import annotations

import torch

from specbench.conversion.layer import AttentionWeights, Projection, Split


def split(weights: AttentionWeights) -> Split:
    """All keys stay where they are: n = d, e = 0."""
    width, heads = weights.width, weights.kv_heads
    none = Projection(weights.q.weight[:0], None if weights.q.bias is None else weights.q.bias[:0])
    own = torch.eye(heads * width, dtype=weights.q.weight.dtype, device=weights.q.weight.device)
    index = torch.empty(0, 0, dtype=torch.int64, device=own.device)
    return Split(weights, weights.q, none, none, weights.k, own.view(heads, width, -1), index, rotate_nope=True)
