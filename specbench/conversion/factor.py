"""Low-rank factors of stacked projections: by the weights alone, or by what they do to calibration inputs.

Activation-aware means: least mean square error of the outputs over the inputs. Its best factor is the PCA of the
outputs; whitening the inputs with a Cholesky factor of their moment (SVD-LLM) or with its square root (CARE) gives the
same product, which a test checks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Factor:
    """W ~ up @ down with orthonormal columns of `up`; (down, up) -> (A down, up A^-1) would be the same function."""

    down: Tensor  # [r, D]
    up: Tensor  # [m, r]


def factor(weight: Tensor, rank: int, moment: Tensor | None = None) -> Factor:
    """The best product of `rank` for weight [m, D]: of the weight, or of its outputs given E[x x^T] [D, D].

    float64. Exact from rank min(m, D) on, whatever the moment, since directions are looked for inside of the
    weight's own column space. ValueError where the rank is larger than that.
    """
    if not 1 <= rank <= min(weight.shape):
        raise ValueError(f"rank {rank} of a {tuple(weight.shape)} matrix: must be 1 to {min(weight.shape)}")
    basis, inner = _column_space(weight)
    up = basis @ _directions(inner, moment)[1][:, :rank]
    return Factor(up.T @ weight, up)


def spectrum(weight: Tensor, moment: Tensor | None = None) -> Tensor:
    """Squared singular values [min(m, D)], descending: what each direction adds to the outputs' mean square."""
    return _directions(_column_space(weight)[1], moment)[0]


def _column_space(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(orthonormal basis [m, k], weight in that basis [k, D]) with k = min(m, D)."""
    if weight.shape[0] <= weight.shape[1]:
        return torch.eye(weight.shape[0], dtype=weight.dtype, device=weight.device), weight
    basis, inner = torch.linalg.qr(weight)
    return basis, inner


def _directions(weight: Tensor, moment: Tensor | None) -> tuple[Tensor, Tensor]:
    """Squared sizes, descending, and orthonormal directions [k, k] of a weight's outputs."""
    if moment is None:
        vectors, sizes, _ = torch.linalg.svd(weight, full_matrices=False)
        return sizes.square(), vectors
    values, vectors = torch.linalg.eigh(weight @ moment @ weight.T)
    return values.flip(0).clamp_min(0.0), vectors.flip(1)
