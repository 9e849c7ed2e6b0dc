"""Tiny model folders in the Hugging Face layout, made by the library itself, for tests of loading and parity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

CONFIGS: dict[str, type[PreTrainedConfig]] = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
}
SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
SPECIAL = ["<s>", "</s>", "<|user|>", "<|end|>"]


def hf_config(family: str, **changes: Any) -> PreTrainedConfig:
    """A tiny config of a family with full attention."""
    own: dict[str, Any] = {"mistral": {"sliding_window": None}, "qwen3": {"head_dim": 16}}.get(family, {})
    return CONFIGS[family](**(SIZES | own | changes))


def save_model(folder: Path, family: str = "llama", *, shard_size: str = "1GB", **changes: Any) -> Any:
    """Save a model with random weights (biases and norms too, so that none can be forgotten) and return it."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(hf_config(family, **changes), dtype=torch.float32)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() == 1:
                weights.copy_(torch.randn_like(weights) * 0.2 + (0.0 if name.endswith("bias") else 1.0))
    model.save_pretrained(folder, max_shard_size=shard_size)
    return model.eval()


def save_tokenizer(
    folder: Path, *, template: str | None = None, add_bos: bool = False, alphabet: str = "abc", **special: str
) -> None:
    """A byte-level tokenizer: four special tokens, the bytes, and two merges of the first letters."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    first, second, third = alphabet
    merges = [(first, second), (first + second, third)]
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *symbols, first + second, first + second + third])}
    tokenizer = Tokenizer(BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if add_bos:
        tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    names = {"bos_token": "<s>", "eos_token": "</s>", "extra_special_tokens": SPECIAL[2:]} | special
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    wrapped.chat_template = template
    wrapped.save_pretrained(folder)
