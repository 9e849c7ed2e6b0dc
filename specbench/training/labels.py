"""From collected steps to what a classifier should say of each token, and the loss that holds it to that."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.training.rollouts import Rollouts
from specbench.types import ConfigError

KINDS = ("survive", "conditional", "soft")


def labels(data: Rollouts, kind: str) -> tuple[Tensor, Tensor]:
    """Label [n] in [0, 1] and which tokens have one [n].

    survive: 1 if the token ends up accepted, of every token. conditional: the same, up to the first rejected token of a
    step: what comes later is undefined, not rejected. soft: the chance of acceptance instead of what was drawn.
    """
    if kind not in KINDS:
        raise ConfigError(f"label={kind}: not a legal value. Legal: {', '.join(KINDS)}")
    accepted = data.accepted.float()
    if kind == "survive":
        return accepted, torch.ones_like(data.accepted)
    defined = data.index <= data.num_accepted[data.step] + 1
    return (accepted if kind == "conditional" else data.accept_prob.nan_to_num(0.0)), defined


def weighted_loss(logits: Tensor, label: Tensor, *, reject_weight: float = 1.0) -> Tensor:
    """Cross-entropy of soft labels in which rejection weighs `reject_weight`, over the sum of the weights.

    Source: SpecDec++'s training code (there 6). A weight other than 1 shifts every probability: calibrate afterwards.
    """
    rejected = reject_weight * (1.0 - label)
    loss = -(rejected * F.logsigmoid(-logits) + label * F.logsigmoid(logits)).sum()
    return loss / (rejected.sum() + label.sum())
