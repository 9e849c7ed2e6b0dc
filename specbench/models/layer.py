"""One layer of a decoder: its attention, of either kind, its gated MLP, and their norms."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.models.attention import GroupedQueryAttention
from specbench.models.latent import LatentAttention
from specbench.models.linear import Linear
from specbench.models.spec import ModelSpec


class MLP:
    """Gated MLP with fused gate and up projections."""

    def __init__(self, spec: ModelSpec, *, dtype: torch.dtype, device: torch.device) -> None:
        self.width = spec.intermediate_size
        new = functools.partial(torch.empty, dtype=dtype, device=device)
        bias_in = new(2 * self.width) if spec.mlp_bias else None
        bias_out = new(spec.hidden_size) if spec.mlp_bias else None
        self.gate_up = Linear(new(2 * self.width, spec.hidden_size), bias_in)
        self.down = Linear(new(spec.hidden_size, self.width), bias_out)

    def slots(self, prefix: str) -> dict[str, Tensor]:
        """Library tensor names under `prefix` (``...mlp.``) -> views into the fused weights."""
        named: dict[str, Tensor] = {}
        for fused, down, suffix in (
            (self.gate_up.weight, self.down.weight, "weight"),
            (self.gate_up.bias, self.down.bias, "bias"),
        ):
            if fused is not None and down is not None:
                gate, up = fused.chunk(2)
                named |= {f"{prefix}gate_proj.{suffix}": gate, f"{prefix}up_proj.{suffix}": up}
                named[f"{prefix}down_proj.{suffix}"] = down
        return named

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Layer:
    """Attention and MLP of one layer with their norms."""

    attention: GroupedQueryAttention | LatentAttention

    def __init__(self, spec: ModelSpec, index: int, *, dtype: torch.dtype, device: torch.device) -> None:
        if spec.mla is None:
            self.attention = GroupedQueryAttention(spec, dtype=dtype, device=device)
        else:
            self.attention = LatentAttention(spec, index, dtype=dtype, device=device)
        self.mlp = MLP(spec, dtype=dtype, device=device)
        self.norms = [torch.empty(spec.hidden_size, dtype=dtype, device=device) for _ in range(2)]

    def slots(self, prefix: str) -> dict[str, Tensor]:
        return {
            f"{prefix}input_layernorm.weight": self.norms[0],
            f"{prefix}post_attention_layernorm.weight": self.norms[1],
            **self.attention.slots(f"{prefix}self_attn."),
            **self.mlp.slots(f"{prefix}mlp."),
        }

    def linears(self) -> list[Linear]:
        return [*self.attention.linears(), self.mlp.gate_up, self.mlp.down]
