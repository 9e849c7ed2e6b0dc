"""What a decoder-only transformer looks like: the numbers and switches that its config.json decides.

No torch here: a spec can be read, compared and hashed without loading anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from specbench.models.latent_spec import LatentSpec, latent_from_config
from specbench.types import ModelError

RopeKind = Literal["default", "linear", "llama3", "yarn"]

FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
# Converted models (`latent_model`): the same but for the attention, which the table `mla` describes.
LATENT_FAMILIES = {
    "LlamaMLAForCausalLM": "llama",
    "Qwen2MLAForCausalLM": "qwen2",
    "Qwen3MLAForCausalLM": "qwen3",
}
_ROPE_NEEDS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("original_max_position_embeddings",),
}
_ROPE_OPTIONAL = ("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")
# What the library assumes where an old config.json is silent.
_DEFAULT_THETA = 10_000.0
_DEFAULT_NORM_EPS = 1e-6
_DEFAULT_MISTRAL_WINDOW = 4096


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding: base `theta`, scaling `kind` and the numbers of that kind, named as in config.json."""

    theta: float = _DEFAULT_THETA
    kind: RopeKind = "default"
    params: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelSpec:
    """Shape and switches of one supported model; sizes are counts of elements, `max_positions` counts tokens."""

    family: str  # llama, mistral, qwen2 or qwen3
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_positions: int
    norm_eps: float = _DEFAULT_NORM_EPS
    rope: RopeSpec = field(default_factory=RopeSpec)
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False
    mla: LatentSpec | None = None  # None: grouped-query attention

    @property
    def heads_of_a_key(self) -> int:
        """Query heads that meet the same cached keys in a pass of few rows."""
        shared = self.mla is not None and not self.mla.caches_scales  # all heads meet the one latent
        return self.num_heads if shared else self.num_heads // self.num_kv_heads

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ModelError(f"num_heads ({self.num_heads}) is not a multiple of num_kv_heads ({self.num_kv_heads})")
        if self.head_dim % 2:
            raise ModelError(f"head_dim ({self.head_dim}) is odd; rotary embeddings turn pairs of numbers")
        if self.mla is not None:
            self.mla.check(self)


def read_spec(folder: Path) -> ModelSpec:
    """The spec that the config.json of a model folder describes; raises ModelError naming the folder."""
    config = read_json(folder / "config.json")
    try:
        return spec_from_config(config)
    except ModelError as error:
        raise ModelError(f"{folder}: {error}") from None


def read_json(path: Path) -> Mapping[str, Any]:
    """A JSON object from a file of a model; raises ModelError naming the file and the line where it is broken."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    except json.JSONDecodeError as error:
        raise ModelError(f"{path}, line {error.lineno}: not valid JSON ({error.msg})") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path}: expected a JSON object")
    return content


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    """The spec of a Hugging Face config.json (old and new rope layout); raises ModelError for what is unsupported."""
    family, latent = _family(config)
    _refuse_unsupported(config, family)
    attention_bias = bool(config.get("attention_bias", False)) and family in ("llama", "qwen3")
    heads, hidden = _count(config, "num_attention_heads"), _count(config, "hidden_size")
    max_positions = _count(config, "max_position_embeddings")
    return ModelSpec(
        family=family,
        num_layers=_count(config, "num_hidden_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        intermediate_size=_count(config, "intermediate_size"),
        vocab_size=_count(config, "vocab_size"),
        max_positions=max_positions,
        norm_eps=float(config.get("rms_norm_eps", _DEFAULT_NORM_EPS)),
        rope=_rope(config, max_positions),
        qkv_bias=family == "qwen2" or attention_bias,
        o_bias=attention_bias,
        mlp_bias=family == "llama" and bool(config.get("mlp_bias", False)),
        qk_norm=family == "qwen3",
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        mla=latent_from_config(_table(config, "mla")) if latent else None,
    )


def _family(config: Mapping[str, Any]) -> tuple[str, bool]:
    """The family, and whether its attention was converted to a latent one."""
    architectures = config.get("architectures") or []
    known = FAMILIES | LATENT_FAMILIES
    named = [(known[name], name in LATENT_FAMILIES) for name in architectures if name in known]
    if not architectures and config.get("model_type") in FAMILIES.values():
        named = [(config["model_type"], False)]
    if not named:
        found = ", ".join(architectures) or f"model_type={config.get('model_type')}"
        raise ModelError(f"unsupported architecture {found}; supported: {', '.join(known)}")
    return named[0]


def _table(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = config.get(key)
    if not isinstance(table, dict):
        raise ModelError(f"config.json: {key} must be a table, found {table!r}")
    return table


def _refuse_unsupported(config: Mapping[str, Any], family: str) -> None:
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "unknown")
        raise ModelError(f"quantized weights ({method}) are not supported; use a float16, bfloat16 or float32 model")
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelError(f"hidden_act={activation} is not supported; supported: silu")
    window = _sliding_window(config, family)
    if window is not None:
        raise ModelError(
            f"this model attends within a sliding window of {window} tokens, which is not supported; "
            "only models with full attention in every layer are"
        )


def _sliding_window(config: Mapping[str, Any], family: str) -> int | str | None:
    """The window that some layer uses, or None where every layer sees the whole context."""
    if any("sliding" in str(kind) for kind in config.get("layer_types") or ()):
        return config.get("sliding_window") or "unknown"
    if family == "mistral":
        window = config.get("sliding_window", _DEFAULT_MISTRAL_WINDOW)
    elif family in ("qwen2", "qwen3") and config.get("use_sliding_window", False):
        # Layers below max_window_layers see everything; an explicit list of layer types was looked at above.
        all_full = config.get("layer_types") or config.get("max_window_layers", 0) >= config["num_hidden_layers"]
        window = None if all_full else config.get("sliding_window")
    else:
        return None
    if window is None or window >= _count(config, "max_position_embeddings"):
        return None  # a window as long as the context hides nothing
    return int(window)


def _rope(config: Mapping[str, Any], max_positions: int) -> RopeSpec:
    """Both layouts: `rope_theta` beside `rope_scaling` (transformers 4) and all in `rope_parameters` (5)."""
    table = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    table = table.get("full_attention") or table  # one table a layer type; sliding ones are refused before
    kind = str(table.get("rope_type") or table.get("type") or "default")
    if kind not in _ROPE_NEEDS:
        raise ModelError(f"rope type {kind!r} is not supported; supported: {', '.join(_ROPE_NEEDS)}")
    if table.get("partial_rotary_factor", config.get("partial_rotary_factor")) not in (None, 1, 1.0):
        raise ModelError("partial_rotary_factor other than 1 is not supported")
    if kind in ("llama3", "yarn"):
        outer = config.get("original_max_position_embeddings")
        table["original_max_position_embeddings"] = (
            outer or table.get("original_max_position_embeddings") or max_positions
        )
    needed = _ROPE_NEEDS[kind]
    missing = [key for key in needed if table.get(key) is None]
    if missing:
        raise ModelError(f"rope type {kind!r} needs {', '.join(missing)} in rope_parameters (or rope_scaling)")
    optional = _ROPE_OPTIONAL if kind == "yarn" else ()
    params = {key: float(table[key]) for key in dict.fromkeys(needed + optional) if table.get(key) is not None}
    theta = float(table.get("rope_theta") or config.get("rope_theta") or _DEFAULT_THETA)
    return RopeSpec(theta, cast(RopeKind, kind), params)


def _count(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"config.json: {key} must be a positive whole number, found {value!r}")
    return value
