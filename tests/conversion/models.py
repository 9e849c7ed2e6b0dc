"""Small models to convert, settings, and attention written out by hand for what a conversion may keep."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specbench.config.methods_mla import MlaConfig
from specbench.conversion.layer import AttentionWeights, attention_weights
from specbench.conversion.plan import Converter, Plan, full_names
from specbench.conversion.statistics import LayerStatistics, gather
from specbench.conversion.walk import Walk
from specbench.models.checkpoint import cast_all
from specbench.models.decoder import Decoder
from specbench.models.latent_model import latent_decoder
from tests.composed import composed
from tests.models.pairs import decoder_of, library_model, random_ids

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


@functools.cache
def base(family: str = "llama", dtype: torch.dtype = torch.float64, **changes: Any) -> Decoder:
    """A random model of two layers; `rope=llama3` scales its frequencies."""
    if changes.pop("rope", None) == "llama3":
        changes["rope_parameters"] = LLAMA3
    return decoder_of(library_model(family, num_hidden_layers=2, **changes), dtype=dtype, path="library")


@functools.cache
def _config() -> MlaConfig:
    method = composed("model=tiny", "method=mla").method
    assert isinstance(method, MlaConfig)
    return method


def config(**changes: Any) -> MlaConfig:
    """The default settings but for `changes`; keys of `reconstruct` and `calibration` are given as mappings."""
    parts = {key: replace(getattr(_config(), key), **changes.pop(key, {})) for key in ("reconstruct", "calibration")}
    return replace(_config(), **({"freqfold": 1} | changes | parts))


def statistics(decoder: Decoder, ids: Tensor | None = None) -> list[LayerStatistics]:
    """Of every layer, on random tokens."""
    ids = random_ids(24, decoder.spec.vocab_size, batch=6) if ids is None else ids
    walk, found = Walk(decoder, ids, 3), []
    for index, layer in enumerate(decoder.layers):
        inputs = walk.inputs(layer)
        found.append(gather(attention_weights(decoder, index), [inputs.flatten(0, 1)]))
        walk.advance(layer, walk.attend(layer.attention, inputs))
    return found


def converter(decoder: Decoder, **changes: Any) -> Converter:
    return Converter(decoder, config(**changes), statistics(decoder))


def planned(found: Converter, rank: int | None = None) -> Plan:
    """The plan of fixed folding, or one with this rank in every layer."""
    if rank is None:
        return found.plan(_unasked)
    assert isinstance(found.config.freqfold, int)
    return Plan(found.config.freqfold, (rank,) * found.decoder.spec.num_layers, {})


def _unasked(*_: Any) -> float:
    raise AssertionError("perplexity is asked for only where freqfold is auto")


def converted(found: Converter, plan: Plan) -> Decoder:
    """The converted model in the dtype of the base."""
    tensors: dict[str, Tensor] = {}
    for layer in range(found.decoder.spec.num_layers):
        tensors |= full_names(layer, cast_all(found.layer(layer, plan), found.decoder.dtype))
    return latent_decoder(found.decoder, found.spec(plan), tensors)


def inputs(decoder: Decoder, rows: int = 20, *, seed: int = 3) -> Tensor:
    """Random normed states [2, rows, D]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, rows, decoder.spec.hidden_size, generator=generator, dtype=decoder.dtype)


def attention_outputs(decoder: Decoder, x: Tensor, layer: int = 0) -> Tensor:
    """What the decoder's own attention layer gives [2, T, D]."""
    with torch.no_grad():
        return decoder.layers[layer].attention(x, decoder.batch_rows(x), None)


def partly_rotated(decoder: Decoder, x: Tensor, turned: Tensor, mixers: Tensor | None = None, layer: int = 0) -> Tensor:
    """Outputs [2, T, D] of a layer in which only the pairs `turned` [K, p] rotate, head by head.

    `mixers` [p, K, K]: an orthogonal mix of the key heads at every frequency first, rows = new heads; queries then lie
    in the slot of their key head.
    """
    weights = attention_weights(decoder, layer)
    q = weights.q(x).unflatten(-1, (weights.heads, 2, weights.pairs))
    k = weights.k(x).unflatten(-1, (weights.kv_heads, 2, weights.pairs))
    v = weights.v(x).unflatten(-1, (weights.kv_heads, weights.width))
    q, k = _normed(weights, q, 0), _normed(weights, k, 1)
    mix = torch.eye(weights.kv_heads, dtype=x.dtype).expand(weights.pairs, -1, -1) if mixers is None else mixers
    k = torch.einsum("lch,bthzl->btczl", mix, k)
    heads = []
    for head in range(weights.heads):
        group = head // weights.groups
        own = torch.einsum("lc,btzl->btczl", mix[:, :, group], q[:, :, head])  # its slot, seen from every new head
        scores = _turn(decoder, own, turned).flatten(2) @ _turn(decoder, k, turned).flatten(2).transpose(1, 2)
        scores = scores * weights.width**-0.5
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        heads.append(scores.softmax(-1) @ v[:, :, group])
    named = decoder.layers[layer].attention.slots("")
    return torch.nn.functional.linear(torch.cat(heads, -1), named["o_proj.weight"], named.get("o_proj.bias"))


def _normed(weights: AttentionWeights, x: Tensor, place: int) -> Tensor:
    if weights.qk_norm is None:
        return x
    flat = x.flatten(-2)
    flat = flat * torch.rsqrt(flat.square().mean(-1, keepdim=True) + weights.eps) * weights.qk_norm[place]
    return flat.view_as(x)


def _turn(decoder: Decoder, x: Tensor, turned: Tensor) -> Tensor:
    """Pairs [b, T, K, 2, p] as complex numbers, turned by the model's own tables where `turned` [K, p] says so."""
    cos, sin = (table[:, :, x.shape[-1] :] for table in decoder.rotary(torch.arange(x.shape[1]), x.dtype))  # [T, 1, p]
    turn = torch.where(turned.bool(), torch.complex(cos, sin), torch.ones_like(turned))
    z = torch.complex(x[..., 0, :], x[..., 1, :]) * turn
    return torch.stack([z.real, z.imag], dim=-2)


def relative(found: Tensor, wanted: Tensor) -> float:
    """Largest difference over the largest number wanted."""
    return float((found - wanted).abs().max() / wanted.abs().max())
