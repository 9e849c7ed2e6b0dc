"""The `mla` table of config.json: read as written, and refused by key and legal values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specbench.models.latent_spec import LatentSpec, latent_from_config
from specbench.models.spec import ModelSpec, spec_from_config
from specbench.types import ModelError
from tests.models.hf_folders import hf_config

LLAMA: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], **hf_config("llama").to_dict()}
TABLE: dict[str, Any] = {
    "form": "split",
    "ranks": [6, 9],
    "rope_heads": 1,
    "rope_dim": 4,
    "nope_dim": 6,
    "key_heads": 4,
    "scaling": 0.25,
}


def converted(**changes: Any) -> dict[str, Any]:
    table = TABLE | {"base": "a model", "provenance": {"converter": "by hand"}} | changes
    return LLAMA | {"architectures": ["LlamaMLAForCausalLM"], "model_type": "llama_mla", "mla": table}


def test_a_written_table_is_read_again() -> None:
    spec = spec_from_config(converted(absorb_rows=3))
    assert spec.mla == LatentSpec("split", (6, 9), 1, 4, 6, 4, 0.25, absorb_rows=3)
    assert spec.mla is not None
    assert latent_from_config(spec.mla.to_config()) == spec.mla
    assert replace(spec, mla=None) == spec_from_config(LLAMA)
    assert spec.heads_of_a_key == 4
    assert spec_from_config(LLAMA).heads_of_a_key == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"form": "spilt"}, ["mla.form=spilt", "split, svd"]),
        ({"rope_heads": 3}, ["mla.rope_heads=3", "1, 2"]),
        ({"rope_dim": 3}, ["mla.rope_dim=3", "even"]),
        ({"rope_dim": 0}, ["mla.rope_dim=0", "from 2 on"]),
        ({"key_heads": 3}, ["mla.key_heads=3", "4, 2"]),
        ({"ranks": [6]}, ["mla.ranks", "2 layers"]),
        ({"ranks": [6, 0]}, ["mla.ranks", ">= 1"]),
        ({"ranks": 6}, ["mla.ranks", "list of whole numbers"]),
        ({"nope_dim": "6"}, ["mla.nope_dim", "whole number"]),
        ({"nope_dim": -1}, ["mla.nope_dim", ">= 0"]),
        ({"scaling": None}, ["mla.scaling", "number"]),
        ({"bias_mode": "exact"}, ["mla.bias_mode=exact", "legal: none"]),
        ({"qk_norm": "static"}, ["mla.qk_norm=static", "legal: none"]),
        ({"form": "svd"}, ["mla.rope_heads=1", "legal: 0"]),
        ({"form": "svd", "rope_heads": 0, "rope_dim": 0}, ["mla.nope_dim=6", "legal: 8"]),
    ],
)
def test_what_does_not_fit_is_refused_by_key(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        spec_from_config(converted(**changes))
    assert all(word in str(caught.value) for word in words), caught.value


def test_missing_keys_and_a_missing_table_are_named() -> None:
    config = converted()
    del config["mla"]["ranks"], config["mla"]["form"]
    with pytest.raises(ModelError, match="mla lacks form, ranks"):
        spec_from_config(config)
    with pytest.raises(ModelError, match="mla must be a table"):
        spec_from_config(config | {"mla": None})


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "legal: exact, static"),
        ({"qk_norm": "static", "rope_heads": 1}, "does not commute"),
        ({"qk_norm": "static", "nope_dim": 6}, "does not commute"),
        ({"qk_norm": "exact", "key_heads": 4}, "legal: 2"),
    ],
)
def test_models_that_norm_keys_need_a_head_of_their_own(changes: dict[str, Any], word: str) -> None:
    base = spec_from_config({"architectures": ["Qwen3ForCausalLM"], **hf_config("qwen3").to_dict()})
    fields = {**TABLE, "ranks": (6, 9), "rope_heads": 2, "nope_dim": 12, "key_heads": 2} | changes
    with pytest.raises(ModelError, match=word):
        replace(base, mla=LatentSpec(**fields))


def test_a_table_never_makes_another_model_latent() -> None:
    spec: ModelSpec = spec_from_config(LLAMA | {"mla": TABLE})
    assert spec.mla is None
