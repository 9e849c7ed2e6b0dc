"""Small random model pairs in the library's folder layout, for tests and for trying commands out.

The draft is the target's first layers; the target's later branches are scaled down, so that the draft is right
often but not always. Variants: `plain`; `zero` where id 0 is frequent; `eos` where the end-of-turn id is likely.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from specbench.models.spec import ModelSpec
from specbench.results.files import make_folder

VARIANTS = ("plain", "zero", "eos")
_VERSION = 3  # raise when the weights or files below change: the folder name carries it
_BYTES = 256
_SPECIALS = ("<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>")
_END = _BYTES + _SPECIALS.index("<|end|>")
_FAVOURED = {"zero": (0, 12.0), "eos": (_END, 2.8)}  # variant -> (id, pull towards it)
_TEMPLATE = (
    "{{ '<s>' }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SPEC = ModelSpec(
    family="llama",
    num_layers=6,
    hidden_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=96,
    vocab_size=_BYTES + len(_SPECIALS),
    max_positions=16384,
)
_DRAFT_LAYERS = 2
_LATE_SCALE = 0.1


def prepare_tiny(cache_dir: Path, variant: str = "plain") -> tuple[Path, Path]:
    """Folders of the target and the draft, made on first use and whole or absent."""
    root = cache_dir / "models" / f"tiny-{variant}-v{_VERSION}"
    make_folder(cache_dir)
    with FileLock(str(cache_dir / ".tiny.lock")):
        if not root.is_dir():
            root.parent.mkdir(parents=True, exist_ok=True)
            work = Path(tempfile.mkdtemp(prefix=".tiny-", dir=root.parent))
            try:
                write_pair(work, variant)
                os.replace(work, root)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return root / "target", root / "draft"


def write_pair(folder: Path, variant: str = "plain", *, seed: int = 0) -> tuple[Path, Path]:
    """Write target/ and draft/ under `folder` and return them."""
    weights = target_weights(variant, seed=seed)
    pair = folder / "target", folder / "draft"
    for path, layers in zip(pair, (SPEC.num_layers, _DRAFT_LAYERS), strict=True):
        path.mkdir(parents=True, exist_ok=True)
        save_file(first_layers(weights, layers), path / "model.safetensors", metadata={"format": "pt"})
        _write_json(path / "config.json", library_config(replace(SPEC, num_layers=layers)))
        _write_json(path / "generation_config.json", {"eos_token_id": [_END], "bos_token_id": _BYTES})
        _write_tokenizer(path)
    return pair


def target_weights(variant: str = "plain", *, seed: int = 0) -> dict[str, Tensor]:
    """The target's tensors by library name, float32."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float) -> Tensor:
        return torch.randn(*shape, generator=generator) * scale

    spec, d, q = SPEC, SPEC.hidden_size, SPEC.num_heads * SPEC.head_dim
    kv = spec.num_kv_heads * spec.head_dim
    weights = {
        "model.embed_tokens.weight": normal(spec.vocab_size, d, scale=1.0),
        "model.norm.weight": 1 + normal(d, scale=0.1),
        "lm_head.weight": normal(spec.vocab_size, d, scale=0.35),
    }
    for layer in range(spec.num_layers):
        late = _LATE_SCALE if layer >= _DRAFT_LAYERS else 1.0
        prefix = f"model.layers.{layer}."
        weights |= {
            f"{prefix}input_layernorm.weight": 1 + normal(d, scale=0.1),
            f"{prefix}post_attention_layernorm.weight": 1 + normal(d, scale=0.1),
            f"{prefix}self_attn.q_proj.weight": normal(q, d, scale=0.25),
            f"{prefix}self_attn.k_proj.weight": normal(kv, d, scale=0.25),
            f"{prefix}self_attn.v_proj.weight": normal(kv, d, scale=0.2),
            f"{prefix}self_attn.o_proj.weight": normal(d, q, scale=0.2 * late),
            f"{prefix}mlp.gate_proj.weight": normal(spec.intermediate_size, d, scale=0.2),
            f"{prefix}mlp.up_proj.weight": normal(spec.intermediate_size, d, scale=0.2),
            f"{prefix}mlp.down_proj.weight": normal(d, spec.intermediate_size, scale=0.2 * late),
        }
    _favour(weights, variant)
    return weights


def first_layers(weights: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    """The tensors of a model that ends after `layers` layers."""
    return {
        name: tensor.contiguous()
        for name, tensor in weights.items()
        if not name.startswith("model.layers.") or int(name.split(".")[2]) < layers
    }


def library_config(spec: ModelSpec) -> dict[str, Any]:
    """config.json of a Llama model with this spec."""
    renamed = {
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "max_position_embeddings": spec.max_positions,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": spec.rope.theta,
        "tie_word_embeddings": spec.tied_embeddings,
    }
    same = {key: asdict(spec)[key] for key in ("hidden_size", "head_dim", "intermediate_size", "vocab_size")}
    names = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"}
    return {**names, **renamed, **same, "torch_dtype": "float32", "bos_token_id": _BYTES, "eos_token_id": _END}


def _favour(weights: dict[str, Tensor], variant: str) -> None:
    """Turn one row of the head towards a direction that all states share."""
    if variant not in _FAVOURED:
        return
    token, pull = _FAVOURED[variant]
    shared = torch.ones(SPEC.hidden_size)
    weights["model.embed_tokens.weight"] += 0.5 * shared
    weights["lm_head.weight"][token] += pull * shared * 0.1


def _write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer: ids 0..255 are bytes, then the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in _SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "<|end|>",
            "chat_template": _TEMPLATE,
            "clean_up_tokenization_spaces": False,
        },
    )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
