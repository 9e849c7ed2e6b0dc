"""Small models with random latent attention of every form, and the formula of that attention written out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specbench.models.decoder import Decoder
from specbench.models.latent import LatentAttention
from specbench.models.latent_model import latent_decoder
from specbench.models.latent_spec import LatentSpec
from specbench.models.spec import ModelSpec
from tests.models.pairs import decoder_of, filled_cache, library_model

# Family of the base -> what differs from one rotated key, nope width 6 and ranks of 6 and 9 in its two layers.
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "one rope head": ("llama", {"rope_dim": 6}),
    "a rope head each": ("llama", {"rope_heads": 2, "rope_dim": 4, "nope_dim": 4}),
    "keys shared by a group": ("llama", {"rope_heads": 2, "key_heads": 2}),
    "nothing but rope": ("llama", {"rope_heads": 2, "rope_dim": 8, "nope_dim": 0}),
    "exact bias": ("qwen2", {"rope_heads": 2, "bias_mode": "exact"}),
    "latent bias": ("qwen2", {"bias_mode": "latent"}),
    "exact norm": ("qwen3", {"rope_heads": 2, "nope_dim": 12, "key_heads": 2, "qk_norm": "exact"}),
    "static norm": ("qwen3", {"rope_heads": 2, "nope_dim": 12, "qk_norm": "static"}),
    "svd": ("llama", {"form": "svd"}),
    "svd, exact bias": ("qwen2", {"form": "svd", "bias_mode": "exact", "key_heads": 2}),
    "svd, exact norm": ("qwen3", {"form": "svd", "qk_norm": "exact"}),
}
SPLIT = [name for name in FORMS if not name.startswith("svd")]


def latent_spec(base: ModelSpec, **changes: Any) -> LatentSpec:
    """Latent attention for a base with ranks that differ by layer."""
    svd = changes.get("form") == "svd"
    usual = {
        "form": "split",
        "ranks": tuple(6 + 3 * layer for layer in range(base.num_layers)),
        "rope_heads": 0 if svd else 1,
        "rope_dim": 0 if svd else 4,
        "nope_dim": base.head_dim if svd else 6,
        "key_heads": base.num_heads,
        "scaling": base.head_dim**-0.5,
        "absorb_rows": 8,
    }
    return LatentSpec(**(usual | changes))


def random_tensors(base: Decoder, mla: LatentSpec, *, seed: int = 0) -> dict[str, Tensor]:
    """Random tensors of every layer; rotated pairs in no order; output projection and norms are left to the base."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    spec = replace(base.spec, mla=mla)
    for layer in range(spec.num_layers):
        attention = LatentAttention(spec, layer, dtype=torch.float64, device=torch.device("cpu"))
        prefix = f"model.layers.{layer}.self_attn."
        for name, part in attention.parts().items():
            if not name.startswith("o_proj"):
                width = 1.5 / math.sqrt(part.shape[-1])
                tensors[prefix + name] = torch.randn(part.shape, generator=generator, dtype=torch.float64) * width
        if mla.rope_heads:
            pairs = torch.stack(
                [torch.randperm(spec.head_dim // 2, generator=generator) for _ in range(mla.rope_heads)]
            )
            tensors[f"{prefix}rope_index"] = pairs[:, : mla.rope_dim // 2].contiguous()
    return tensors


def latent_model(
    form: str, *, dtype: torch.dtype = torch.float64, path: str = "library", layers: int = 2, **changes: Any
) -> Decoder:
    """A decoder with random latent attention of a named form."""
    family, own = FORMS[form]
    base = decoder_of(library_model(family, num_hidden_layers=layers), dtype=dtype, path=path)
    mla = latent_spec(base.spec, **(own | changes))
    return latent_decoder(base, mla, random_tensors(base, mla))


def written_out(decoder: Decoder, layer: int, x: Tensor) -> Tensor:
    """Attention output [T, d] of one sequence x [T, d] in float64, head by head and query by query."""
    spec, mla, attention = decoder.spec, decoder.spec.mla, decoder.layers[layer].attention
    assert mla is not None
    assert isinstance(attention, LatentAttention)
    held = {name: part.double() for name, part in attention.slots("").items()}
    angles = torch.arange(len(x)).double()[:, None] * decoder._frequencies.double()
    return torch.cat([_head(spec, mla, held, x, angles, head) for head in range(spec.num_heads)], -1) @ held[
        "o_proj.weight"
    ].T + held.get("o_proj.bias", torch.zeros(()))


def _head(spec: ModelSpec, mla: LatentSpec, held: dict[str, Tensor], x: Tensor, angles: Tensor, head: int) -> Tensor:
    group = head // (spec.num_heads // spec.num_kv_heads)
    latent = _rows(held, "kv_down", x, 0, held["kv_down.weight"].shape[0])
    shared = group if mla.key_heads == spec.num_kv_heads else head
    v = _rows(held, "v_up", latent, head, spec.head_dim)
    if mla.form == "svd":
        q, k = _rows(held, "q_proj", x, head, spec.head_dim), _rows(held, "k_up", latent, shared, spec.head_dim)
        q, k = _normed(held, "q_norm", q, None, spec.norm_eps), _normed(held, "k_norm", k, None, spec.norm_eps)
        q, k = _turned(q, angles), _turned(k, angles)
    else:
        turning = head // (spec.num_heads // mla.rope_heads)
        index = held["rope_index"][turning].long()
        order = _order(index, spec.head_dim)
        q = torch.cat([_rows(held, "q_nope", x, head, mla.nope_dim), _rows(held, "q_rope", x, head, mla.rope_dim)], -1)
        k = torch.cat(
            [_rows(held, "k_up", latent, shared, mla.nope_dim), _rows(held, "k_rope", x, turning, mla.rope_dim)], -1
        )
        q, k = _normed(held, "q_norm", q, order, spec.norm_eps), _normed(held, "k_norm", k, order, spec.norm_eps)
        n = mla.nope_dim
        q = torch.cat([q[:, :n], _turned(q[:, n:], angles[:, index])], -1)
        k = torch.cat([k[:, :n], _turned(k[:, n:], angles[:, index])], -1)
    scores = mla.scaling * q @ k.T
    scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
    return scores.softmax(-1) @ v


def _rows(held: dict[str, Tensor], name: str, x: Tensor, head: int, width: int) -> Tensor:
    """What the rows of one head give."""
    if width == 0:
        return x[:, :0]
    rows = slice(head * width, (head + 1) * width)
    bias = held.get(f"{name}.bias")
    return x @ held[f"{name}.weight"][rows].T + (0.0 if bias is None else bias[rows])


def _order(index: Tensor, width: int) -> list[int]:
    turned = [*index.tolist(), *(index + width // 2).tolist()]
    return [place for place in range(width) if place not in turned] + turned


def _normed(held: dict[str, Tensor], name: str, x: Tensor, order: list[int] | None, eps: float) -> Tensor:
    weight = held.get(f"{name}.weight")
    if weight is None:
        return x
    weight = weight if order is None else weight[order]
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    """Pairs (l, l + half) of x [T, width] turned as complex numbers by angles [T, width / 2]."""
    low, high = x.chunk(2, -1)
    turned = torch.complex(low, high) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], -1)


def near(actual: Tensor | None, expected: Tensor | None, *, atol: float = 1e-9) -> None:
    assert actual is not None
    assert expected is not None
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


def random_states(rows: int, *, batch: int = 1, seed: int = 3) -> Tensor:
    return torch.randn(batch, rows, 32, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def attention_of(decoder: Decoder, layer: int = 0) -> LatentAttention:
    attention = decoder.layers[layer].attention
    assert isinstance(attention, LatentAttention)
    return attention


def decode(decoder: Decoder, ids: Tensor, sizes: tuple[int, ...]) -> Tensor:
    cache = filled_cache(decoder, ids[:, :0])
    parts = []
    for chunk in ids.split(sizes, dim=1):
        parts.append(decoder.forward(chunk, cache, start=cache.length).logits)
        cache.keep(range(chunk.shape[1]))
    return torch.cat([part for part in parts if part is not None], dim=1)
