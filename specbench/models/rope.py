"""Rotary frequencies of the supported scaling kinds, computed here so that no library release can change them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from specbench.models.spec import RopeSpec


def inverse_frequencies(rope: RopeSpec, head_dim: int, max_positions: int) -> tuple[Tensor, float]:
    """The frequencies [head_dim / 2] (float32, radians a token) and the factor that multiplies cos and sin.

    Kinds: default (RoFormer), linear (position interpolation), llama3 (Llama 3.1), yarn (arXiv 2309.00071).
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / rope.theta**exponents
    if rope.kind == "linear":
        return plain / rope.params["factor"], 1.0
    if rope.kind == "llama3":
        return _llama3(plain, rope.params), 1.0
    if rope.kind == "yarn":
        return _yarn(rope, head_dim, max_positions)
    return plain, 1.0


def _llama3(plain: Tensor, params: Mapping[str, float]) -> Tensor:
    """Short wavelengths stay, long ones are stretched by `factor`, those between are blended."""
    low, high = params["low_freq_factor"], params["high_freq_factor"]
    turns = params["original_max_position_embeddings"] * plain / (2 * math.pi)  # over the original context
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return keep * plain + (1 - keep) * plain / params["factor"]


def _yarn(rope: RopeSpec, head_dim: int, max_positions: int) -> tuple[Tensor, float]:
    """Dimensions that turn often stay, those that turn rarely are interpolated, with a linear ramp between."""
    params = rope.params
    original = params["original_max_position_embeddings"]
    factor = params.get("factor", max_positions / original)

    def dimension(num_turns: float) -> float:  # (fractional) dimension that turns so often over the original context
        return head_dim * math.log(original / (num_turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    first, last = dimension(params.get("beta_fast", 32.0)), dimension(params.get("beta_slow", 1.0))
    if params.get("truncate", 1.0):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    width = last - first if last != first else 1e-3
    interpolate = ((torch.arange(head_dim // 2, dtype=torch.float32) - first) / width).clamp(0, 1)
    powers = rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    frequencies = interpolate / (factor * powers) + (1 - interpolate) / powers
    return frequencies, _yarn_attention_factor(factor, params)


def _yarn_attention_factor(factor: float, params: Mapping[str, float]) -> float:
    def temperature(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if "attention_factor" in params:
        return params["attention_factor"]
    if params.get("mscale") and params.get("mscale_all_dim"):
        return temperature(params["mscale"]) / temperature(params["mscale_all_dim"])
    return temperature(1.0)
