"""Our logits are the library's, for every family, switch and way of feeding the same tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specbench.decoding.target import PREFILL_CHUNK, fill
from specbench.models.decoder import Decoder
from tests.models.pairs import decoder_of, library_model, random_ids

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama one kv head": ("llama", {"num_key_value_heads": 1}),
    "llama as many kv heads as heads": ("llama", {"num_key_value_heads": 4}),
    "llama wide heads": ("llama", {"head_dim": 24}),
    "llama attention bias": ("llama", {"attention_bias": True}),
    "llama mlp bias": ("llama", {"mlp_bias": True}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama norm eps": ("llama", {"rms_norm_eps": 1e-2}),
    "llama theta": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    "llama linear rope": ("llama", {"rope_parameters": LINEAR}),
    "llama llama3 rope": ("llama", {"rope_parameters": LLAMA3}),
    "llama yarn rope": ("llama", {"rope_parameters": YARN}),
    "mistral": ("mistral", {}),
    "mistral wide heads": ("mistral", {"head_dim": 24}),
    "qwen2": ("qwen2", {}),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2 yarn rope": ("qwen2", {"rope_parameters": YARN}),
    "qwen3": ("qwen3", {}),
    "qwen3 attention bias": ("qwen3", {"attention_bias": True}),
    "qwen3 one kv head tied": ("qwen3", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
}
CHUNKS = (20, 1, 5, 70, 3, 1)  # more and fewer rows than the grouped layout takes
LENGTH = sum(CHUNKS)


@pytest.fixture(scope="module", params=VARIANTS)
def models(request: pytest.FixtureRequest) -> tuple[Any, Decoder]:
    family, changes = VARIANTS[request.param]
    model = library_model(family, **changes)
    return model, decoder_of(model)


@pytest.fixture(scope="module")
def expected(models: tuple[Any, Decoder]) -> torch.Tensor:
    return library_logits(models[0], random_ids(LENGTH))


def library_logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(ids).logits


def assert_parity(logits: torch.Tensor | None, expected: torch.Tensor) -> None:
    assert logits is not None
    assert logits.shape == expected.shape
    assert float(expected.abs().max()) > 1.0  # else an absolute bound would say nothing
    assert float((logits - expected).abs().max()) < 1e-4


def in_chunks(decoder: Decoder, ids: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
    cache = decoder.new_cache(ids.shape[1])
    parts = []
    for chunk in ids.split(sizes, dim=1):
        out = decoder.forward(chunk, cache, start=cache.length)
        cache.keep(range(chunk.shape[1]))
        assert out.logits is not None
        parts.append(out.logits)
    return torch.cat(parts, dim=1)


def test_batch_without_cache(models: tuple[Any, Decoder]) -> None:
    model, decoder = models
    ids = random_ids(30, batch=3)
    assert_parity(decoder.forward(ids).logits, library_logits(model, ids))


def test_prefill_with_cache(models: tuple[Any, Decoder], expected: torch.Tensor) -> None:
    _, decoder = models
    assert_parity(in_chunks(decoder, random_ids(LENGTH), (LENGTH,)), expected)


def test_one_token_after_another(models: tuple[Any, Decoder], expected: torch.Tensor) -> None:
    _, decoder = models
    ids = random_ids(LENGTH)[:, :40]
    assert_parity(in_chunks(decoder, ids, (1,) * 40), expected[:, :40])


def test_several_rows_at_a_time(models: tuple[Any, Decoder], expected: torch.Tensor) -> None:
    _, decoder = models
    assert_parity(in_chunks(decoder, random_ids(LENGTH), CHUNKS), expected)


def test_only_the_last_row(models: tuple[Any, Decoder], expected: torch.Tensor) -> None:
    _, decoder = models
    ids = random_ids(LENGTH)
    assert_parity(decoder.forward(ids, decoder.new_cache(LENGTH), logits="last").logits, expected[:, -1:])


@pytest.mark.parametrize("length", [PREFILL_CHUNK - 1, PREFILL_CHUNK, PREFILL_CHUNK + 1, PREFILL_CHUNK + 90])
def test_long_prompt_filled_in_chunks(length: int) -> None:
    model = library_model("qwen3", num_hidden_layers=1, rope_parameters=YARN)
    decoder, ids = decoder_of(model), random_ids(length + 2)
    cache = decoder.new_cache(length + 2)
    fill(decoder, cache, ids[0, :length].tolist())
    assert cache.length == length
    out = decoder.forward(ids[:, length:], cache, start=length)
    assert_parity(out.logits, library_logits(model, ids)[:, length:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_lower_precision_stays_near_and_both_product_paths_agree(family: str, dtype: torch.dtype) -> None:
    model, ids = library_model(family, initializer_range=0.15), random_ids(40)
    expected = library_logits(model, ids)
    library = decoder_of(model, dtype=dtype).forward(ids).logits
    packed = decoder_of(model, dtype=dtype, path="packed").forward(ids).logits
    assert library is not None
    assert packed is not None
    step = torch.finfo(dtype).eps * float(expected.abs().max())
    assert library.dtype == packed.dtype == torch.float32
    assert float((library - expected).abs().mean()) < 8 * step
    assert float((packed - library).abs().mean()) < 8 * step
