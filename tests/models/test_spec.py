"""Specs are read right from config.json of every family, and what is unsupported is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from specbench.models.spec import RopeSpec, read_spec, spec_from_config
from specbench.types import ModelError
from tests.models.hf_folders import hf_config

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}


def saved(family: str, **changes: Any) -> dict[str, Any]:
    return {**hf_config(family, **changes).to_dict(), "architectures": None}


def test_old_config_gets_the_librarys_defaults() -> None:
    spec = spec_from_config(LLAMA)
    assert (spec.num_kv_heads, spec.head_dim, spec.norm_eps) == (4, 16, 1e-6)
    assert spec.rope == RopeSpec(10_000.0, "default", {})
    assert not spec.tied_embeddings


def test_old_and_new_rope_layouts_say_the_same() -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    old = spec_from_config(LLAMA | {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **scaling}})
    new = spec_from_config(LLAMA | {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **scaling}})
    assert old.rope == new.rope == RopeSpec(5e5, "llama3", scaling)


@pytest.mark.parametrize(
    ("family", "changes", "expected"),
    [
        ("llama", {}, (False, False, False, False)),
        ("llama", {"attention_bias": True, "mlp_bias": True}, (True, True, True, False)),
        ("mistral", {}, (False, False, False, False)),
        ("qwen2", {}, (True, False, False, False)),
        ("qwen3", {}, (False, False, False, True)),
        ("qwen3", {"attention_bias": True}, (True, True, False, True)),
    ],
)
def test_biases_and_norms_follow_the_family(family: str, changes: dict[str, Any], expected: tuple[bool, ...]) -> None:
    spec = spec_from_config(saved(family, **changes))
    assert (spec.qkv_bias, spec.o_bias, spec.mlp_bias, spec.qk_norm) == expected
    assert spec.family == family
    assert spec.head_dim == (16 if family == "qwen3" else 8)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, ["GPT2LMHeadModel", "LlamaForCausalLM", "Qwen3ForCausalLM"]),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 64}, ["sliding window of 64"]),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "use_sliding_window": True,
                "sliding_window": 32,
                "max_window_layers": 1,
            },
            ["sliding window of 32"],
        ),
        ({"architectures": ["Qwen3ForCausalLM"], "layer_types": ["full_attention", "sliding_attention"]}, ["sliding"]),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, ["longrope", "default, linear, llama3, yarn"]),
        ({"rope_scaling": {"type": "linear"}}, ["linear", "factor"]),
        ({"quantization_config": {"quant_method": "gptq"}}, ["gptq"]),
        ({"hidden_act": "gelu"}, ["gelu", "silu"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor"]),
        ({"num_hidden_layers": None}, ["num_hidden_layers"]),
        ({"num_key_value_heads": 3}, ["num_kv_heads"]),
    ],
)
def test_unsupported_is_refused_by_name(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        spec_from_config(LLAMA | changes)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["MistralForCausalLM"], "sliding_window": None},
        {"architectures": ["MistralForCausalLM"], "sliding_window": 256},
        {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False, "sliding_window": 32},
        {
            "architectures": ["Qwen2ForCausalLM"],
            "use_sliding_window": True,
            "sliding_window": 32,
            "max_window_layers": 3,
        },
    ],
)
def test_windows_that_hide_nothing_are_accepted(changes: dict[str, Any]) -> None:
    assert spec_from_config(LLAMA | changes).num_layers == 3


def test_broken_config_is_named_with_its_line(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text('{\n "a": 1,\n oops\n}')
    with pytest.raises(ModelError, match=r"config\.json, line 3"):
        read_spec(tmp_path)
