"""How good a classifier's chances are: ranking (AUC), calibration (ECE, Brier), overall and by place in the draft."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from torch import Tensor

from specbench.training.reliability import auc, expected_calibration_error

_LARGEST_LOG_TEMPERATURE = 4.0


def fitted_temperature(logits: Tensor, label: Tensor) -> float:
    """The T with the least unweighted cross-entropy of sigmoid(logits / T) against labels in [0, 1]."""
    x, y = logits.double(), label.double()

    def loss(log_temperature: float) -> float:
        return float(F.binary_cross_entropy_with_logits(x / np.exp(log_temperature), y))

    limits = (-_LARGEST_LOG_TEMPERATURE, _LARGEST_LOG_TEMPERATURE)
    return float(np.exp(minimize_scalar(loss, bounds=limits, method="bounded").x))


def scores(chance: Tensor, label: Tensor, index: Tensor) -> dict[str, Any]:
    """AUC, ECE and Brier score, AUC and count by place in the draft, and the mean label; labels above 1/2 are right.

    Pooled AUC is flattered by the fall of acceptance with depth: the one by place says what a classifier knows.
    """
    p, y, places = chance.double().numpy(), label.double().numpy(), index.numpy()
    by_place = {int(place): places == place for place in np.unique(places)}
    return {
        "auc": auc(p, y > 0.5),
        "ece": expected_calibration_error(p, y),
        "brier": float(np.mean((p - y) ** 2)),
        "mean_label": float(y.mean()),
        "mean_chance": float(p.mean()),
        "num_tokens": len(p),
        "auc_by_index": {str(place): auc(p[chosen], y[chosen] > 0.5) for place, chosen in by_place.items()},
        "tokens_by_index": {str(place): int(chosen.sum()) for place, chosen in by_place.items()},
    }


def constant_brier(label: Tensor) -> float:
    """The Brier score of always saying the mean: what a classifier must beat."""
    return float(torch.mean((label.double() - label.double().mean()) ** 2))
