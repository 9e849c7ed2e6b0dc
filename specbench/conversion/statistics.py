"""What a conversion needs to know of a layer's inputs, gathered batch by batch, in float64.

Second moments of any projection of the inputs follow from E[x x^T] and E[x]; only the mean sizes of rotated pairs,
which MHA2MLA ranks, need the projections of each token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.conversion.layer import AttentionWeights, Projection
from specbench.models.attention import rms_norm


@dataclass(frozen=True)
class LayerStatistics:
    """Means over calibration tokens of one layer's inputs x [D] (after the input norm), of the original model."""

    moment: Tensor  # [D, D], E[x x^T]
    mean: Tensor  # [D]
    q_sizes: Tensor  # [H, p], mean 2-norm of each query pair before rotation (after q/k norm)
    k_sizes: Tensor  # [K, p]

    def output_moment(self, projection: Projection) -> Tensor:
        """E[y y^T] [m, m] of the outputs y = W x + b."""
        weight, bias = projection.weight, projection.bias
        moment = weight @ self.moment @ weight.T
        if bias is None:
            return moment
        cross = torch.outer(weight @ self.mean, bias)
        return moment + cross + cross.T + torch.outer(bias, bias)

    def augmented_moment(self) -> Tensor:
        """E[z z^T] [D + 1, D + 1] of z = [x; 1]: a bias is then one more column of the weight."""
        top = torch.cat([self.moment, self.mean[:, None]], dim=1)
        bottom = torch.cat([self.mean, self.mean.new_ones(1)])
        return torch.cat([top, bottom[None]])

    def tensors(self) -> dict[str, Tensor]:
        """What `LayerStatistics(**tensors)` takes, for storing."""
        return {"moment": self.moment, "mean": self.mean, "q_sizes": self.q_sizes, "k_sizes": self.k_sizes}


def gather(weights: AttentionWeights, batches: Iterable[Tensor]) -> LayerStatistics:
    """Statistics of inputs [n, D] given in batches, on the device of the weights."""
    sums: Mapping[str, Tensor] | None = None
    count = 0
    for batch in batches:
        found = _sums(weights, batch.double())
        sums = found if sums is None else {name: sums[name] + found[name] for name in found}
        count += batch.shape[0]
    assert sums is not None, "calibration has at least one batch"
    return LayerStatistics(**{name: total / count for name, total in sums.items()})


def _sums(weights: AttentionWeights, x: Tensor) -> dict[str, Tensor]:
    sizes = {}
    for name, heads, place in (("q", weights.heads, 0), ("k", weights.kv_heads, 1)):
        projected: Tensor = getattr(weights, name)(x).view(x.shape[0], heads, weights.width)
        if weights.qk_norm is not None:
            projected = rms_norm(projected, weights.qk_norm[place], weights.eps)
        pairs = projected.view(x.shape[0], heads, 2, weights.pairs)
        sizes[f"{name}_sizes"] = pairs.norm(dim=2).sum(0)
    return {"moment": x.T @ x, "mean": x.sum(0), **sizes}
