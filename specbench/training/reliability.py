"""Ranking and calibration of chances against what happened, in plain numbers (no torch)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BINS = 15

Floats = NDArray[np.float64]


def auc(chance: Floats, right: NDArray[np.bool_]) -> float | None:
    """The chance that a right token is ranked above a wrong one; None where one kind is missing."""
    from sklearn.metrics import roc_auc_score  # half a second, which only trainings and tables need to spend

    return None if right.all() or not right.any() else float(roc_auc_score(right, chance))


def reliability(chance: Floats, label: Floats, bins: int = _BINS) -> list[tuple[float, float, int]]:
    """(mean chance, mean label, count) of every bin of equal width that is not empty."""
    place = np.minimum((chance * bins).astype(int), bins - 1)
    filled = [place == b for b in range(bins) if (place == b).any()]
    return [(float(chance[own].mean()), float(label[own].mean()), int(own.sum())) for own in filled]


def expected_calibration_error(chance: Floats, label: Floats) -> float:
    """Mean distance between chance and label over 15 bins of equal width, weighted by how full they are."""
    return sum(abs(p - y) * count for p, y, count in reliability(chance, label)) / len(chance)
