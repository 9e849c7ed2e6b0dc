"""Small classifiers of drafted tokens: from what the draft saw to the chance that a token is accepted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.decoding.protocol import Block

SCALARS = ("log_prob", "entropy", "margin", "index")
_SMALLEST = 1e-9  # a drawn token has some probability; rounding may lose it


class AcceptanceHead(nn.Module):
    """Logits [n] of acceptance from features [n, f]; computed in float32, calibrated by an offset and a temperature."""

    offset: Tensor
    temperature: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.zeros(()))
        self.register_buffer("temperature", torch.ones(()))

    def probability(self, features: Tensor) -> Tensor:
        """Calibrated chance [n] that each token is accepted."""
        return torch.sigmoid((self(features.float()) + self.offset) / self.temperature)

    def values(self) -> dict[str, Any]:
        """What it takes to build the same head again."""
        raise NotImplementedError


class ScalarHead(AcceptanceHead):
    """Logistic regression (width 0) or one hidden layer over SCALARS, standardised with stored mean and spread."""

    mean: Tensor
    spread: Tensor

    def __init__(self, width: int = 0) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("mean", torch.zeros(len(SCALARS)))
        self.register_buffer("spread", torch.ones(len(SCALARS)))
        self.hidden = nn.Linear(len(SCALARS), width) if width else nn.Identity()
        self.out = nn.Linear(width or len(SCALARS), 1)

    def standardise(self, features: Tensor) -> None:
        """Take mean and spread from features [n, 4]."""
        self.mean.copy_(features.mean(0))
        self.spread.copy_(features.std(0).clamp_min(1e-6))

    def forward(self, features: Tensor) -> Tensor:
        x = (features - self.mean) / self.spread
        logits: Tensor = self.out(F.silu(self.hidden(x)) if self.width else x)
        return logits[:, 0]

    def values(self) -> dict[str, Any]:
        return {"width": self.width}


class ResidualHead(AcceptanceHead):
    """SpecDec++: residual units (linear, SiLU, added) over a hidden state, then one logit.

    `shared` applies one unit `num_layers` times, as the released code does by accident. One logit is equivalent to
    its two with a softmax.
    """

    def __init__(self, width: int, num_layers: int = 3, *, shared: bool = False) -> None:
        super().__init__()
        self.width, self.num_layers, self.shared = width, num_layers, shared
        self.units = nn.ModuleList(nn.Linear(width, width) for _ in range(1 if shared else num_layers))
        self.out = nn.Linear(width, 1)

    def forward(self, features: Tensor) -> Tensor:
        x = features
        for layer in range(self.num_layers):
            x = x + F.silu(self.units[0 if self.shared else layer](x))
        logits: Tensor = self.out(x)
        return logits[:, 0]

    def values(self) -> dict[str, Any]:
        return {"width": self.width, "num_layers": self.num_layers, "shared": self.shared}


def loaded(head: AcceptanceHead, tensors: Mapping[str, Tensor]) -> AcceptanceHead:
    """The head with stored weights, ready for inference."""
    head.load_state_dict(dict(tensors))
    return head.requires_grad_(False).eval()


def scalar_features(log_prob: Tensor, entropy: Tensor, margin: Tensor, index: Tensor) -> Tensor:
    """[n, 4] in the order of SCALARS; `index` counts the tokens of a draft from 1."""
    return torch.stack([log_prob.float(), entropy.float(), margin.float(), index.float()], dim=-1)


def log_probability(prob: Tensor) -> Tensor:
    """log of draft probabilities, finite."""
    return prob.float().clamp_min(_SMALLEST).log()


def block_features(block: Block) -> Tensor:
    """The scalar features [b, 4] of a block just drafted."""
    assert block.prob is not None
    assert block.entropy is not None
    assert block.margin is not None
    index = torch.arange(1, len(block.tokens) + 1, device=block.prob.device) + block.first
    return scalar_features(log_probability(block.prob), block.entropy, block.margin, index)
