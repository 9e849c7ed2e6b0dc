"""Read a GGUF file into the Hugging Face layout: config.json, float32 safetensors, tokenizer, generation config.

Weights are stored as float32: numbers dequantised from four bits fit no 16-bit type exactly, and the float32 run is
the proof of exactness. Tensors are read and written shard by shard. The tokenizer is read by transformers.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file
from tqdm import tqdm

from specbench.models.spec import ModelSpec, spec_from_config
from specbench.types import ModelError

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
# How a byte-level vocabulary splits text before merging; with any other rule the ids would silently be wrong.
_KNOWN_SPLITS = ("smollm", "gpt-2", "llama-bpe", "llama3", "llama-v3", "tekken", "qwen2", "deepseek-r1-qwen")
_SHARD_BYTES = 2**30
_DISK_MARGIN_BYTES = 64 * 2**20


def convert(path: Path, folder: Path) -> None:
    """Write the model of GGUF file `path` into the existing, empty `folder`; raises ModelError, OSError (disk)."""
    reader = _open(path)
    config = _config(reader, path)
    spec = spec_from_config(config)
    _check_space(reader, folder)
    _write_json(folder / "config.json", config)
    special = {key: value for key, value in config.items() if key.endswith("_token_id")}
    _write_json(folder / "generation_config.json", special)
    _write_tokenizer(path, str(_value(reader, "tokenizer.ggml.pre", "")), folder)
    _write_weights(reader, spec, folder, path)


def _open(path: Path) -> gguf.GGUFReader:
    try:
        reader = gguf.GGUFReader(path)
    except Exception as error:  # the reader has no error type of its own: any of numpy's and Python's can come
        raise ModelError(f"{path} is not a complete GGUF file: {error}") from error
    # Long contexts of Llama 3 hide in a tensor of factors, others in keys; neither has a place in what we write.
    kind = next((_value(reader, key) for key in reader.fields if key.endswith(".rope.scaling.type")), "none")
    if kind != "none" or any(tensor.name == "rope_freqs.weight" for tensor in reader.tensors):
        raise ModelError(f"{path} uses RoPE scaling, which is not read from GGUF; use the safetensors model instead")
    return reader


def _value(reader: gguf.GGUFReader, key: str, default: Any = None) -> Any:
    field = reader.fields.get(key)
    return default if field is None else field.contents()


def _config(reader: gguf.GGUFReader, path: Path) -> dict[str, Any]:
    arch = str(_value(reader, "general.architecture"))
    if arch not in _ARCHITECTURES:
        raise ModelError(f"{path}: unsupported GGUF architecture {arch}; supported: {', '.join(_ARCHITECTURES)}")
    shapes = {tensor.name: [int(n) for n in reversed(tensor.shape)] for tensor in reader.tensors}
    heads = _value(reader, f"{arch}.attention.head_count")
    hidden = _value(reader, f"{arch}.embedding_length")
    if not heads or not hidden or "token_embd.weight" not in shapes:
        raise ModelError(f"{path} lacks head_count, embedding_length or token_embd.weight")
    found: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[arch]],
        "model_type": arch,
        "hidden_size": hidden,
        "num_hidden_layers": _value(reader, f"{arch}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _value(reader, f"{arch}.attention.head_count_kv", heads),
        "head_dim": _value(reader, f"{arch}.attention.key_length", hidden // heads),
        "intermediate_size": _value(reader, f"{arch}.feed_forward_length"),
        "vocab_size": shapes["token_embd.weight"][0],
        "max_position_embeddings": _value(reader, f"{arch}.context_length"),
        # Kept as float32 in the file: the shortest decimal that gives the same float32 is what was meant.
        "rms_norm_eps": float(str(np.float32(_value(reader, f"{arch}.attention.layer_norm_rms_epsilon", 1e-6)))),
        "rope_theta": float(_value(reader, f"{arch}.rope.freq_base", 10_000.0)),
        "tie_word_embeddings": "output.weight" not in shapes,
        "attention_bias": arch == "llama" and "blk.0.attn_q.bias" in shapes,
        "hidden_act": "silu",
        "dtype": "float32",
    }
    ids = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    for key, name in ids.items():
        token_id = _value(reader, f"tokenizer.ggml.{name}_token_id")
        if token_id is not None:
            found[key] = token_id
    window = _value(reader, f"{arch}.attention.sliding_window")
    return found if not window else {**found, "sliding_window": window, "layer_types": ["sliding_attention"]}


def _check_space(reader: gguf.GGUFReader, folder: Path) -> None:
    """Say so before minutes of work rather than after."""
    need = sum(int(tensor.n_elements) for tensor in reader.tensors) * np.float32().nbytes + _DISK_MARGIN_BYTES
    if shutil.disk_usage(folder).free < need:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {need / 2**20:.0f} MiB needed", str(folder))


def _write_tokenizer(path: Path, split: str, folder: Path) -> None:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    if split and split != "default" and split not in _KNOWN_SPLITS:
        raise ModelError(
            f"{path}: the tokenizer splits text by rule {split!r}, which is not read from GGUF "
            f"(known: {', '.join(_KNOWN_SPLITS)}); use the safetensors model instead"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    except Exception as error:  # whatever the library's reader trips over, the file is what the user can change
        raise ModelError(f"cannot read the tokenizer of {path}: {error}") from error
    if split == "smollm":  # transformers leaves out that every digit stands alone
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    tokenizer.save_pretrained(folder)


def _write_weights(reader: gguf.GGUFReader, spec: ModelSpec, folder: Path, path: Path) -> None:
    shards = list(_shards(reader))
    total = sum(tensor.n_elements for shard in shards for tensor in shard) * np.float32().nbytes
    placed: dict[str, str] = {}
    with tqdm(total=int(total), unit="B", unit_scale=True, desc=f"converting {path.name}", disable=None) as bar:
        for number, shard in enumerate(shards, start=1):
            name = "model.safetensors"
            if len(shards) > 1:
                name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            arrays = {}
            for tensor in shard:
                arrays[_hf_name(tensor.name, path)] = weights = _weights(tensor, spec, path)
                bar.update(weights.nbytes)
            save_file(arrays, folder / name, metadata={"format": "pt"})
            placed.update(dict.fromkeys(arrays, name))
    if len(shards) > 1:
        index = {"metadata": {"total_size": int(total)}, "weight_map": placed}
        _write_json(folder / "model.safetensors.index.json", index)


def _shards(reader: gguf.GGUFReader) -> Iterator[list[gguf.ReaderTensor]]:
    shard: list[gguf.ReaderTensor] = []
    size = 0
    for tensor in reader.tensors:
        num_bytes = int(tensor.n_elements) * np.float32().nbytes
        if shard and size + num_bytes > _SHARD_BYTES:
            yield shard
            shard, size = [], 0
        shard.append(tensor)
        size += num_bytes
    yield shard


def _hf_name(name: str, path: Path) -> str:
    if name in _OUTER:
        return _OUTER[name]
    block = _BLOCK.fullmatch(name)
    if block is None or block[2] not in _INNER:
        raise ModelError(f"{path}: unknown tensor {name}")
    return f"model.layers.{block[1]}.{_INNER[block[2]]}.{block[3]}"


def _weights(tensor: gguf.ReaderTensor, spec: ModelSpec, path: Path) -> np.ndarray:
    try:
        weights = np.ascontiguousarray(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    except (NotImplementedError, ValueError) as error:
        raise ModelError(f"{path}: cannot dequantise {tensor.name} ({tensor.tensor_type.name}): {error}") from error
    block = _BLOCK.fullmatch(tensor.name)
    if spec.family == "llama" and block and block[2] in ("attn_q", "attn_k"):
        # GGUF keeps the two numbers that RoPE turns side by side; the Hugging Face layout keeps halves of a head.
        pairs = weights.reshape(-1, spec.head_dim // 2, 2, *weights.shape[1:])
        weights = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weights.shape)
    return weights


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
