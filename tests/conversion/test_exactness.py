"""Where a conversion must lose nothing, in float64: attention outputs equal those of the original layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.conversion.budget import Elements
from specbench.conversion.layer import attention_weights
from specbench.conversion.statistics import LayerStatistics
from specbench.decoding.target import fill
from tests.conversion.models import (
    attention_outputs,
    base,
    config,
    converted,
    converter,
    inputs,
    partly_rotated,
    planned,
    relative,
    statistics,
)
from tests.models.pairs import random_ids

EXACT = 1e-10
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama3 rope": ("llama", {"rope": "llama3"}),
    "biases": ("qwen2", {}),
    "q/k norm": ("qwen3", {}),
}
UNNORMED = [name for name in MODELS if name != "q/k norm"]


def error_of(name: str, rank: int | None = None, layer: int = 1, **changes: Any) -> float:
    """Of a converted layer of a named model against the original one."""
    family, own = MODELS[name]
    model = base(family, **own)
    found = converter(model, **changes)
    latent = converted(found, planned(found, rank))
    x = inputs(model)
    return relative(attention_outputs(latent, x, layer), attention_outputs(model, x, layer))


def full(name: str, **changes: Any) -> int:
    """The rank at which factors are exact."""
    family, own = MODELS[name]
    return Elements.of(converter(base(family, **own), **changes).split(0, 1)).limit


@pytest.mark.parametrize("factor", ["svd", "whitened"])
@pytest.mark.parametrize("name", MODELS)
def test_svd_at_full_rank_is_the_original(name: str, factor: str) -> None:
    settings = {"converter": "svd", "factor": factor}
    assert error_of(name, full(name, **settings), **settings) < EXACT
    assert error_of(name, full(name, **settings) // 2, **settings) > 1e-3


@pytest.mark.parametrize("factor", ["svd", "whitened"])
@pytest.mark.parametrize("name", MODELS)
def test_mha2mla_with_every_pair_rotated_is_the_original(name: str, factor: str) -> None:
    settings = {"converter": "mha2mla", "factor": factor, "rope_dim": base(MODELS[name][0]).spec.head_dim}
    assert error_of(name, full(name, **settings), **settings) < EXACT


@pytest.mark.parametrize("name", UNNORMED)
def test_transmla_with_every_virtual_head_rotated_is_the_original(name: str) -> None:
    spec = base(MODELS[name][0]).spec
    settings = {"converter": "transmla", "rope_dim": spec.num_kv_heads * spec.head_dim}
    assert error_of(name, full(name, **settings), **settings) < EXACT


def test_transmla_of_one_key_head_is_the_original() -> None:
    model = base("llama", num_key_value_heads=1)
    found = converter(model, converter="transmla", rope_dim=model.spec.head_dim)
    latent, x = converted(found, planned(found, model.spec.head_dim)), inputs(model)
    assert relative(attention_outputs(latent, x), attention_outputs(model, x)) < EXACT


@pytest.mark.parametrize("select", ["2norm", "high", "low", "uniform"])
@pytest.mark.parametrize("name", MODELS)
def test_mha2mla_at_full_rank_only_takes_rotations_away(name: str, select: str) -> None:
    family, own = MODELS[name]
    model = base(family, **own)
    settings = {"converter": "mha2mla", "rope_dim": 4, "rope_select": select}
    found = converter(model, **settings)
    latent, x = converted(found, planned(found, full(name, **settings))), inputs(model)
    turned = torch.zeros(model.spec.num_kv_heads, model.spec.head_dim // 2, dtype=torch.float64)
    turned.scatter_(1, found.split(0, 1).rope_index, 1.0)
    assert relative(attention_outputs(latent, x), partly_rotated(model, x, turned)) < EXACT
    assert relative(attention_outputs(latent, x), attention_outputs(model, x)) > 1e-3


def mixers(found: LayerStatistics, model: Any) -> Tensor:
    """Eigenvectors over key heads at each frequency [p, K, K], strongest first, from keys token by token."""
    weights = attention_weights(model, 0)
    moment = found.output_moment(weights.k).view(weights.kv_heads, 2, weights.pairs, weights.kv_heads, 2, weights.pairs)
    at = torch.arange(weights.pairs)
    energy = sum(moment[:, half][:, at, :, half, at] for half in (0, 1))
    return torch.linalg.eigh(energy)[1].flip(-1).transpose(1, 2)


@pytest.mark.parametrize("changes", [{}, {"balance": 3.0}, {"bias_mode": "latent"}, {"factor": "svd"}])
@pytest.mark.parametrize("name", UNNORMED)
def test_transmla_at_full_rank_only_takes_rotations_away(name: str, changes: dict[str, Any]) -> None:
    family, own = MODELS[name]
    model = base(family, hidden_size=96, **own)
    spec = model.spec
    found = converter(model, converter="transmla", rope_dim=spec.head_dim, **changes)
    rank = 2 * spec.num_kv_heads * spec.head_dim - spec.head_dim
    assert rank <= spec.hidden_size, "else no rank is full"
    latent, x = converted(found, planned(found, rank)), inputs(model)
    turned = torch.zeros(spec.num_kv_heads, spec.head_dim // 2, dtype=torch.float64)
    turned[0] = 1.0
    wanted = partly_rotated(model, x, turned, mixers(found.statistics[0], model))
    assert relative(attention_outputs(latent, x), wanted) < EXACT
    assert relative(attention_outputs(latent, x), attention_outputs(model, x)) > 1e-3


def test_oracle_with_every_pair_rotated_is_the_layer_itself() -> None:
    for family, own in MODELS.values():
        model = base(family, **own)
        x, spec = inputs(model), model.spec
        turned = torch.ones(spec.num_kv_heads, spec.head_dim // 2, dtype=torch.float64)
        assert relative(partly_rotated(model, x, turned), attention_outputs(model, x)) < EXACT


def test_folded_frequencies_are_approximate() -> None:
    spec = base("llama").spec
    settings = {"converter": "transmla", "rope_dim": spec.num_kv_heads * spec.head_dim}
    assert error_of("llama", full("llama", **settings), freqfold=2, **settings) > 1e-3


@pytest.mark.parametrize("latent", ["split", "only_key", "only_value"])
def test_two_latents_are_exact_where_both_are_full(latent: str) -> None:
    model = base("qwen2")
    settings = {"converter": "mha2mla", "rope_dim": 4, "latent": latent}
    found, x = converter(model, **settings), inputs(model)
    split = found.split(0, 1)
    keys, values = (min(part.rows, model.spec.hidden_size) for part in (split.k_nope, split.weights.v))
    plain = converter(model, converter="mha2mla", rope_dim=4)
    whole = converted(plain, planned(plain, min(split.k_nope.rows + split.weights.v.rows, model.spec.hidden_size)))
    both = converted(found, planned(found, keys + values))
    assert relative(attention_outputs(both, x), attention_outputs(whole, x)) < EXACT


@pytest.mark.parametrize("kind", ["transmla", "mha2mla", "svd"])
def test_decoding_from_the_latent_cache_is_the_full_pass(kind: str) -> None:
    model = base("llama")
    found = converter(model, converter=kind, budget=0.5)
    latent = converted(found, planned(found))
    ids = random_ids(14, model.spec.vocab_size)
    with torch.no_grad():
        wanted = latent.forward(ids).logits
        cache = latent.new_cache(32)
        fill(latent, cache, ids[0, :9].tolist())
        got = [latent.forward(ids[:, 9:11], cache, start=9).logits]
        cache.keep(range(2))
        cache.truncate(10)  # a rejected token
        for place in range(10, 14):
            got.append(latent.forward(ids[:, place : place + 1], cache, start=place).logits)
            cache.keep(range(1))
    assert wanted is not None
    assert relative(torch.cat(got[1:], dim=1), wanted[:, 10:]) < 1e-5  # the norms between layers are float32 at best


@pytest.mark.parametrize("kind", ["transmla", "mha2mla", "svd"])
def test_cache_is_as_large_as_the_budget(kind: str) -> None:
    model = base("llama", hidden_size=128, num_attention_heads=4, num_key_value_heads=4, head_dim=16)
    for budget in (0.5, 0.75):
        found = converter(model, converter=kind, budget=budget)
        latent = converted(found, planned(found))
        assert latent.new_cache(8).nbytes() == pytest.approx(budget * model.new_cache(8).nbytes(), rel=0.01)


def test_statistics_are_the_same_in_any_batches() -> None:
    model = base("qwen3")
    ids = random_ids(24, model.spec.vocab_size, batch=6)
    whole, parts = statistics(model, ids), statistics(model, ids.flip(0))
    for ours, theirs in zip(whole, parts, strict=True):
        for name, tensor in ours.tensors().items():
            assert relative(tensor, theirs.tensors()[name]) < EXACT, name


def test_converting_leaves_the_original_alone() -> None:
    model = base("llama")
    before = {name: tensor.clone() for name, tensor in model.slots().items()}
    found = converter(model, converter="transmla")
    converted(found, planned(found))
    assert config().converter == "transmla"
    assert all(torch.equal(before[name], tensor) for name, tensor in model.slots().items())
