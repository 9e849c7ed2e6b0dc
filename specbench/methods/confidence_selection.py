"""ConfLayers' selection rule: which layers to skip, from how peaked their outputs are.

A layer whose confidence lies below the mean of its neighbours (less lambda standard deviations) is skipped; how many
neighbours count grows with depth and with the curvature of the confidences over the layers. Source: the code of
WA225/ConfLayers; a summary of the paper differs (docs/methods/confl.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.floating]

DTYPES = {"float16": np.float16, "float32": np.float32, "float64": np.float64}
_LOWEST, _HIGHEST = math.log(torch.finfo(torch.float32).tiny), 88.7  # where exp stays finite in float32
_SMALL = 1e-12


@dataclass(frozen=True)
class Rule:
    """How neighbourhoods are sized, and in which precision.

    `fixed_window`: None = by curvature, w = every neighbourhood is `window_base` + w wide (the published ablation).
    `window_gain` is multiplied by the number of leading layers of equal curvature and is at most `max_gain`.
    """

    dtype: str = "float32"
    window_base: int = 2
    window_gain: int = 5
    fixed_window: int | None = None
    max_gain: int | None = None


@dataclass(frozen=True)
class Selection:
    """The skipped layers, and what led to them: one entry a candidate layer 1..L-2."""

    layers: tuple[int, ...]
    z: Array
    windows: tuple[int, ...]
    local_means: Array
    local_stds: Array
    thresholds: Array


def entropies(rows: Tensor) -> Tensor:
    """Entropy in nats [n] of the softmax over the last dimension of each row of [n, d], in float32 or wider."""
    wide = rows if rows.dtype == torch.float64 else rows.float()
    p = wide.clamp(_LOWEST, _HIGHEST).softmax(-1)
    return -(p * (p + _SMALL).log()).sum(-1)


def confidences(mean_entropies: Array, width: int, dtype: str) -> Array:
    """1 - H / ln(width) for mean entropies H of distributions over `width` entries."""
    return (1.0 - mean_entropies / math.log(width)).astype(DTYPES[dtype])


def standardise(values: Array) -> Array:
    """Mean 0 and standard deviation 1, in the precision of `values`."""
    z: Array = (values - values.mean()) / (float(values.std()) + 1e-6)
    return z


def curvature(z: Array) -> tuple[int, Array]:
    """The length of the leading run of equal second differences, and those mapped into [0, 1] with mean 0.5."""
    bends = np.gradient(np.gradient(z))
    unequal = np.flatnonzero(bends != bends[0])
    run = int(unequal[0]) if len(unequal) else len(bends)
    bends = (bends - bends.min()) / (float(bends.max() - bends.min()) + 1e-8)
    low, high, mean = float(bends.min()), float(bends.max()), float(bends.mean())
    if high - low < _SMALL:
        return run, np.full_like(bends, 0.5)
    scale = min(0.5 / (high - mean), 0.5 / (mean - low))
    # Python numbers keep the array's precision; the offset is rounded once.
    return run, np.clip(scale * bends + (0.5 - scale * mean), 0.0, 1.0)


def window_sizes(z: Array, num_layers: int, rule: Rule) -> tuple[int, ...]:
    """The neighbourhood size of every candidate layer."""
    if rule.fixed_window is not None:
        return (rule.window_base + rule.fixed_window,) * len(z)
    run, mapped = curvature(z)
    gain = rule.window_gain * run
    if rule.max_gain is not None:
        gain = min(gain, rule.max_gain)
    # float() widens: float16 products would move whole windows.
    return tuple(
        rule.window_base + math.floor(gain * float(bend) * (i + 1) / num_layers) for i, bend in enumerate(mapped)
    )


def select(values: Array, num_layers: int, lam: float, rule: Rule) -> Selection:
    """Which of the layers 1..L-2 to skip, given their confidences in `values` [L-2]."""
    return select_standardised(standardise(values.astype(DTYPES[rule.dtype])), num_layers, lam, rule)


def select_standardised(z: Array, num_layers: int, lam: float, rule: Rule) -> Selection:
    """The same from standardised confidences."""
    windows = window_sizes(z, num_layers, rule)
    near = [_neighbours(z, i, size // 2) for i, size in enumerate(windows)]
    means = np.array([float(values.mean()) if len(values) else 0.0 for values in near])
    stds = np.array([float(values.std()) if len(values) else 0.0 for values in near])
    thresholds = means - lam * stds
    layers = tuple(int(i) + 1 for i in np.flatnonzero(z.astype(np.float64) < thresholds))
    return Selection(layers, z, windows, means, stds, thresholds)


def _neighbours(z: Array, i: int, half: int) -> Array:
    return np.concatenate([z[max(0, i - half) : i], z[i + 1 : i + half + 1]])
