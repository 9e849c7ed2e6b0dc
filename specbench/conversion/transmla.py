"""TransMLA: key heads merged into one, rotated so that one virtual head carries most of what rotation needs.

Any orthogonal mix of the K heads at one frequency, the same for both halves of a pair, commutes with the rotary
embedding; the PCA of calibration keys picks it. Frequencies may be folded: a group of F neighbours is mixed as if they
were one, which is approximate, and F / cl components of a group keep rotating (cl = d / e).
"""

from __future__ import annotations

import torch
from torch import Tensor

from specbench.conversion.layer import AttentionWeights, Split
from specbench.conversion.statistics import LayerStatistics
from specbench.types import ConfigError

ROPE_DIM = 64  # of the published conversions


def default_rope_dim(width: int) -> int:
    """The published width, or the head's own where that is smaller."""
    return min(ROPE_DIM, width)


def check(weights: AttentionWeights, *, rope_dim: int, freqfold: int) -> None:
    """Raise ConfigError where this rotated width and folding do not fit the heads, or keys are normalised by head."""
    if weights.qk_norm is not None:
        raise ConfigError(
            "method.converter=transmla: it mixes keys across heads, which a norm of each head (q/k norm, as in Qwen3) "
            "does not allow; legal for this model: mha2mla, svd, care, none"
        )
    pairs, width, whole = weights.pairs, weights.width, weights.kv_heads * weights.width
    folds = [fold for fold in range(1, pairs + 1) if _fits(fold, rope_dim, width)]
    if rope_dim > whole or not folds:
        legal = [dim for dim in range(2, whole + 1, 2) if any(_fits(fold, dim, width) for fold in range(1, pairs + 1))]
        raise ConfigError(f"method.rope_dim={rope_dim}: legal for this model with transmla: {_listed(legal)}")
    if freqfold not in folds:
        raise ConfigError(
            f"method.freqfold={freqfold}: legal for this model with method.rope_dim={rope_dim}: auto, {_listed(folds)}"
        )


def folds(weights: AttentionWeights, rope_dim: int) -> list[int]:
    """The foldings that `auto` compares: from the collapse factor on, each twice the one before."""
    first = max(1, weights.width // rope_dim)
    doubled = [first * 2**step for step in range(weights.pairs.bit_length())]
    return [fold for fold in doubled if fold <= weights.pairs and _fits(fold, rope_dim, weights.width)]


def split(weights: AttentionWeights, statistics: LayerStatistics, *, rope_dim: int, freqfold: int) -> Split:
    """One rotated head of width e = `rope_dim`; the other K d - e key dimensions lose their rotation."""
    check(weights, rope_dim=rope_dim, freqfold=freqfold)
    real, imaginary = _mixers(weights, statistics.output_moment(weights.k), freqfold)
    kept = rope_dim * freqfold // weights.width  # components of a group
    rope = torch.cat([part[:, :kept].flatten(0, 1) for part in (real, imaginary)])
    nope = torch.cat([part[:, kept:].flatten(0, 1) for part in (real, imaginary)])
    slots = rope.view(rope_dim, weights.kv_heads, weights.width).transpose(0, 1)  # [K, e, d]
    q_rope = slots.repeat_interleave(weights.groups, dim=0)  # [H, e, d]
    return Split(
        weights=weights,
        q_nope=weights.q,
        q_rope=weights.q.take(torch.block_diag(*q_rope)),
        k_rope=weights.k.take(rope),
        k_nope=weights.k.take(nope),
        readers=nope.view(nope.shape[0], weights.kv_heads, weights.width).permute(1, 2, 0),
        rope_index=_frequencies(weights, rope_dim, freqfold, kept),
    )


def balance(nope: Tensor, values: Tensor, beta: float) -> float:
    """What the nope keys are divided by before a joint PCA, from second moments: mean sizes of keys over values'."""
    if nope.shape[0] == 0:
        return 1.0
    sizes = [moment.diagonal().clamp_min(0.0).sqrt().mean() for moment in (nope, values)]
    return float(sizes[0] / (beta * sizes[1]))


def _mixers(weights: AttentionWeights, moment: Tensor, fold: int) -> tuple[Tensor, Tensor]:
    """Orthogonal rows for the first and the second halves of all pairs, [p / F, K F, K d] each, strongest first."""
    heads, width, pairs = weights.kv_heads, weights.width, weights.pairs
    channel = torch.arange(heads, device=moment.device)[:, None] * width + torch.arange(pairs, device=moment.device)
    groups = channel.view(heads, pairs // fold, fold).transpose(0, 1).flatten(1)  # [p / F, K F] first halves
    energy = sum(moment[place[:, :, None], place[:, None, :]] for place in (groups, groups + pairs))
    vectors = torch.linalg.eigh(energy)[1].flip(2).transpose(1, 2)  # [p / F, component, channel]
    halves = []
    for place in (groups, groups + pairs):
        rows = vectors.new_zeros(*vectors.shape[:2], heads * width)
        halves.append(rows.scatter_(2, place[:, None, :].expand_as(vectors), vectors))
    return halves[0], halves[1]


def _frequencies(weights: AttentionWeights, rope_dim: int, fold: int, kept: int) -> Tensor:
    """The frequency of each kept pair: component j of group f turns with number f F + j cl."""
    device = weights.q.weight.device
    group = torch.arange(weights.pairs // fold, device=device)[:, None] * fold
    stride = torch.arange(kept, device=device) * weights.width // rope_dim
    return (group + stride).reshape(1, -1)


def _fits(fold: int, rope_dim: int, width: int) -> bool:
    return width // 2 % fold == 0 and rope_dim * fold % width == 0


def _listed(values: list[int]) -> str:
    return ", ".join(str(value) for value in values)
