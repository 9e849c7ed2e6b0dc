"""Tuning one converted layer until it does what the original layer does with the same hidden states.

Objectives: `functional` compares outputs after the output projection with the frozen original's; `kv` compares keys and
values with those of the same layer before compression (a stand-in for the reconstruction that converters bring, whose
exact form the paper's summaries do not give). Neither sees a target model, a token or a label. Relative mean square
errors, so that layers compare.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from specbench.config.methods_mla import ReconstructConfig
from specbench.models.attention import Rows
from specbench.models.latent import LatentAttention

_BETAS = (0.9, 0.95)
_RATE, _TRIED = 4e-3, 576  # by held-out error; at 1.6e-2 layers no longer improve
_QUERIES = ("q_nope", "q_rope", "q_proj")
_TRAINED = {
    "qkv": (*_QUERIES, "k_rope", "kv_down", "k_up", "v_up"),
    "qk_down": (*_QUERIES, "k_rope", "kv_down", "k_up"),
    "qk": (*_QUERIES, "k_rope", "k_up"),
}

Parts = Mapping[str, Tensor]


@dataclass(frozen=True)
class Pairs:
    """Inputs of one attention layer [S, T, D] and the outputs [S, T, D] that the original gives."""

    inputs: Tensor
    outputs: Tensor

    @cached_property
    def power(self) -> Tensor:
        """Mean square of the outputs []: what an error is measured against."""
        return self.outputs.square().mean()


class Loss(Protocol):
    """An objective of one layer."""

    def __call__(self, parts: Parts, data: Pairs, chosen: Tensor | slice) -> Tensor:
        """Relative mean square error [] on some sequences, differentiable in the parts."""
        ...


@dataclass(frozen=True)
class FunctionalLoss:
    """Outputs after the output projection against the original's."""

    attention: LatentAttention
    rows: Rows

    def __call__(self, parts: Parts, data: Pairs, chosen: Tensor | slice) -> Tensor:
        self.attention.use(parts)
        found = self.attention(data.inputs[chosen], self.rows, None)
        return (found - data.outputs[chosen]).square().mean() / data.power


@dataclass(frozen=True)
class KvLoss:
    """Keys and values (before rotation and norms, which change no distance here) against those of `teacher`."""

    teacher: Parts  # the layer before compression

    def __call__(self, parts: Parts, data: Pairs, chosen: Tensor | slice) -> Tensor:
        x = data.inputs[chosen]
        with torch.no_grad():
            wanted = keys_values(self.teacher, x)
        found = keys_values(parts, x)
        errors = [(f - w).square().mean() / w.square().mean() for f, w in zip(found, wanted, strict=True)]
        return torch.stack(errors).sum()


def keys_values(parts: Parts, x: Tensor) -> list[Tensor]:
    """Rotated keys (before rotation), other keys and values [B, T, .] of inputs [B, T, D]; what a layer lacks is
    left out."""

    def project(name: str, given: Tensor) -> list[Tensor]:
        weight = parts.get(f"{name}.weight")
        return [] if weight is None else [linear(given, weight, parts.get(f"{name}.bias"))]

    latent = project("kv_down", x)[0]
    return project("k_rope", x) + project("k_up", latent) + project("v_up", latent)


def trained_names(parts: Parts, train_params: str, reconstruction: str) -> list[str]:
    """The parts that are tuned; `kv` leaves queries alone, since its objective does not see them."""
    chosen = [name for name in _TRAINED[train_params] if reconstruction != "kv" or name not in _QUERIES]
    return [name for name in parts if name.rpartition(".")[0] in chosen]


def learning_rate(settings: ReconstructConfig, hidden_size: int) -> float:
    """The peak rate: the given one, or 4e-3, above the hidden size that it was tried on in proportion to 1 / size."""
    if settings.learning_rate is not None:
        return settings.learning_rate
    return _RATE * min(1.0, _TRIED / hidden_size)


@torch.no_grad()
def error(loss: Loss, parts: Parts, data: Pairs, batch: int) -> float:
    """The objective on all sequences, `batch` at a time."""
    count = len(data.inputs)
    total = 0.0
    for first in range(0, count, batch):
        chosen = slice(first, min(first + batch, count))
        total += float(loss(parts, data, chosen)) * (chosen.stop - first)
    return total / count


@dataclass
class Tuning:
    """One layer in the making: `names` of `start` are tuned on `training`, judged on `held_out`."""

    loss: Loss
    training: Pairs
    held_out: Pairs
    start: Parts  # float32
    names: list[str]
    settings: ReconstructConfig
    layer: int
    tick: Callable[[float], None] = lambda last: None  # after each update, with the last held-out error
    curve: list[float] = field(default_factory=list)  # held-out errors, the start's first
    updates: int = 0

    def run(self) -> dict[str, Tensor]:
        """The best parts by held-out error; those of the start, the very tensors, where nothing beats them."""
        leaves = {name: self.start[name].detach().clone().requires_grad_() for name in self.names}
        parts = {**self.start, **leaves}
        rate = learning_rate(self.settings, self.training.inputs.shape[-1])
        optimiser = torch.optim.AdamW(leaves.values(), lr=rate, betas=_BETAS, weight_decay=0.0)
        best = dict(self.start)
        self.curve = [self._error(self.start)]
        for number, chosen in enumerate(self._order()):
            self._update(optimiser, parts, chosen, rate * self._share(number))
            self.updates += 1
            if self._is_check(number):
                self.curve.append(self._error(parts))
                if self.curve[-1] < min(self.curve[:-1]):
                    best |= {name: leaf.detach().clone() for name, leaf in leaves.items()}
                if self._settled():
                    break
            self.tick(self.curve[-1])
        return best

    def _error(self, parts: Parts) -> float:
        return error(self.loss, parts, self.held_out, self.settings.batch)

    def _update(self, optimiser: torch.optim.Optimizer, parts: Parts, chosen: Tensor, rate: float) -> None:
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.zero_grad(set_to_none=True)
        self.loss(parts, self.training, chosen).backward()
        if self.settings.clip:
            torch.nn.utils.clip_grad_norm_([parts[name] for name in self.names], self.settings.clip)
        optimiser.step()

    def _order(self) -> list[Tensor]:
        """Sequence numbers of every update: whole passes in random order, the same for the same seed and layer."""
        generator = torch.Generator().manual_seed(self.settings.seed * 100_003 + self.layer)
        count, wanted = len(self.training.inputs), self.settings.updates * self.settings.batch
        passes = [torch.randperm(count, generator=generator) for _ in range(math.ceil(wanted / count))]
        return list(torch.cat(passes)[:wanted].to(self.training.inputs.device).split(self.settings.batch))

    def _share(self, number: int) -> float:
        """Of the peak rate: a linear warm-up, then a cosine to 0."""
        warm = max(1, round(self.settings.warmup * self.settings.updates))
        if number < warm:
            return (number + 1) / warm
        return 0.5 + 0.5 * math.cos(math.pi * (number - warm) / max(1, self.settings.updates - warm))

    def _is_check(self, number: int) -> bool:
        every = max(1, self.settings.updates // self.settings.checks)
        return (number + 1) % every == 0 or number + 1 == self.settings.updates

    def _settled(self) -> bool:
        """Whether the last two checks together gained less than the wanted share."""
        if len(self.curve) < 4:  # the start and two checks say nothing yet: the first one is within the warm-up's reach
            return False
        before = min(self.curve[:-2])
        return min(self.curve) > (1.0 - self.settings.min_gain) * before
