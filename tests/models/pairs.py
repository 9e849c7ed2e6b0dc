"""The library's model and our decoder with the same random weights, made in memory."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM

from specbench.models.decoder import Decoder
from specbench.models.kv_cache import KVCache
from specbench.models.spec import spec_from_config
from tests.models.hf_folders import hf_config


def library_model(family: str, *, seed: int = 0, **changes: Any) -> Any:
    """A random model whose logits are a few units wide (the library's own start would hide mistakes)."""
    torch.manual_seed(seed)
    config = hf_config(family, **({"initializer_range": 0.25, "max_position_embeddings": 1024} | changes))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() == 1:
                weights.copy_(torch.randn_like(weights) * 0.2 + (0.0 if name.endswith("bias") else 1.0))
    return model.eval()


def decoder_of(model: Any, *, dtype: torch.dtype = torch.float32, path: str = "library") -> Decoder:
    """Our decoder with the library model's weights."""
    decoder = Decoder(spec_from_config(model.config.to_dict()), dtype=dtype)
    weights = model.state_dict()
    for name, slot in decoder.slots().items():
        slot.copy_(weights[name])
    return decoder.finish(path)


def random_ids(count: int, vocab: int = 96, *, batch: int = 1, seed: int = 1) -> torch.Tensor:
    """Token ids [batch, count]."""
    return torch.randint(vocab, (batch, count), generator=torch.Generator().manual_seed(seed))


def filled_cache(decoder: Decoder, ids: torch.Tensor, capacity: int = 128) -> KVCache:
    """A cache holding the rows of ids [1, T], everything behind them NaN: a read there cannot go unseen."""
    cache = decoder.new_cache(capacity)
    for layer in cache.layers:
        for buffer in layer.values():
            buffer.fill_(float("nan"))
    if ids.shape[1]:
        decoder.forward(ids, cache, start=0, logits="none")
        cache.keep(range(ids.shape[1]))
    return cache
