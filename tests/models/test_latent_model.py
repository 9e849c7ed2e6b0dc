"""Converted models as folders: they come back the same, they say what they were made from, and others are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from specbench.models.checkpoint import LoadedModel, load_decoder, load_model
from specbench.models.draft import copy_layers, load_draft, new_draft, save_draft
from specbench.models.latent_model import check_base, latent_decoder, read_base, save_latent
from specbench.models.latent_spec import LatentSpec
from specbench.types import ModelError
from tests.models.hf_folders import save_model, save_tokenizer
from tests.models.latents import FORMS, latent_spec, random_tensors
from tests.models.pairs import random_ids

IDS = random_ids(25)


def base_model(folder: Path, family: str = "llama", **changes: Any) -> LoadedModel:
    save_model(folder, family, initializer_range=0.25, **changes)
    save_tokenizer(folder)
    return load_model(str(folder), dtype=torch.float32, device="cpu", cache_dir=folder)


def converted(base: LoadedModel, form: str = "one rope head") -> tuple[LatentSpec, dict[str, Tensor]]:
    mla = latent_spec(base.spec, **FORMS[form][1])
    tensors = random_tensors(base.decoder, mla)
    return mla, {name: part.float() if part.is_floating_point() else part for name, part in tensors.items()}


def loaded(folder: Path) -> LoadedModel:
    return load_model(str(folder), dtype=torch.float32, device="cpu", cache_dir=folder)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_saved_model_comes_back_the_same(tmp_path: Path, form: str, tied: bool) -> None:
    base = base_model(tmp_path / "base", FORMS[form][0], tie_word_embeddings=tied)
    mla, tensors = converted(base, form)
    folder = save_latent(tmp_path / "latent", base, mla, tensors, provenance={"converter": "by hand"})
    found, expected = loaded(folder), latent_decoder(base.decoder, mla, tensors)
    assert found.spec.mla == mla
    assert torch.equal(found.decoder.forward(IDS).logits, expected.forward(IDS).logits)  # type: ignore[arg-type]
    assert found.chat is not None
    assert found.chat.stop_ids == base.chat.stop_ids  # type: ignore[union-attr]
    for name, slot in found.decoder.slots().items():
        if name.endswith("rope_index"):
            assert torch.equal(slot, tensors[name])
            assert slot.dtype == torch.int64
    stored = load_file(folder / "model.safetensors")
    assert ("lm_head.weight" in stored) == (not tied)
    assert not any(f".{name}_proj." in key for key in stored for name in "kv")


def test_weights_are_stored_in_the_dtype_of_the_base_and_all_else_is_its_own(tmp_path: Path) -> None:
    base = base_model(tmp_path / "base", "qwen2", tie_word_embeddings=True)
    mla, tensors = converted(base, "exact bias")
    wide = {name: part.double() if part.is_floating_point() else part for name, part in tensors.items()}
    folder = save_latent(tmp_path / "latent", base, mla, wide, provenance={})
    stored, own = load_file(folder / "model.safetensors"), load_file(base.folder / "model.safetensors")
    for name, part in stored.items():
        assert part.dtype == (torch.int64 if name.endswith("rope_index") else torch.float32)
        assert torch.equal(part, own[name] if name in own else tensors[name])
    assert {name for name in own if name not in stored} == {
        f"model.layers.{layer}.self_attn.{part}_proj.{suffix}"
        for layer in range(2)
        for part in "qkv"
        for suffix in ("weight", "bias")
    }


def test_a_folder_says_what_it_was_made_from_and_serves_no_other_base(tmp_path: Path) -> None:
    base = base_model(tmp_path / "base")
    other = base_model(tmp_path / "other", rms_norm_eps=1e-5)
    mla, tensors = converted(base)
    folder = save_latent(tmp_path / "latent", base, mla, tensors, provenance={"converter": "by hand", "seed": 3})
    made_from = read_base(folder)
    assert (made_from.name, made_from.revision) == (base.name, base.revision)
    assert made_from.provenance == {"converter": "by hand", "seed": 3}
    check_base(folder, base)
    with pytest.raises(ModelError) as caught:
        check_base(folder, other)
    assert all(word in str(caught.value) for word in (base.name, base.revision, other.name, other.revision))
    with pytest.raises(ModelError, match="does not say"):
        read_base(base.folder)


def test_a_converted_gguf_model_does_not_pass_for_its_base(tmp_path: Path) -> None:
    """Folders made from a GGUF file are known by its sha256, which must not travel along."""
    base = base_model(tmp_path / "base")
    (base.folder / "conversion.json").write_text(json.dumps({"gguf_sha256": "f" * 64}))
    base = loaded(base.folder)
    assert base.revision == "gguf-" + "f" * 64
    folder = save_latent(tmp_path / "latent", base, *converted(base), provenance={})
    assert loaded(folder).revision.startswith("local-")
    assert read_base(folder).revision == base.revision


def test_tensors_that_do_not_fit_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    base = base_model(tmp_path / "base")
    mla, tensors = converted(base)
    name = "model.layers.1.self_attn.k_rope.weight"
    for changed, words in (
        ({key: part for key, part in tensors.items() if key != name}, f"{name} is missing"),
        (tensors | {name: torch.zeros(3, 32)}, r"k_rope\.weight has shape \[3, 32\].*\[6, 32\]"),
        (tensors | {"model.layers.1.self_attn.k_proj.weight": torch.zeros(1)}, r"k_proj\.weight.*not part"),
    ):
        with pytest.raises(ModelError, match=words):
            save_latent(tmp_path / "latent", base, mla, changed, provenance={})
    assert not (tmp_path / "latent").exists()


def test_families_without_a_converted_form_are_refused(tmp_path: Path) -> None:
    base = base_model(tmp_path / "base", "mistral")
    with pytest.raises(ModelError, match=r"mistral.*llama, qwen2, qwen3"):
        save_latent(tmp_path / "latent", base, *converted(base), provenance={})


def test_a_damaged_index_of_pairs_is_refused_on_load(tmp_path: Path) -> None:
    base = base_model(tmp_path / "base")
    mla, tensors = converted(base)
    index = "model.layers.0.self_attn.rope_index"
    folder = save_latent(tmp_path / "latent", base, mla, tensors | {index: torch.full((1, 3), 4)}, provenance={})
    with pytest.raises(ModelError, match="0 to 3"):
        load_decoder(folder, dtype=torch.float32, device="cpu")


@pytest.mark.parametrize("ids", [None, torch.tensor([3, 5, 90])], ids=["full", "reduced"])
def test_a_trained_draft_can_have_latent_attention(tmp_path: Path, ids: Tensor | None) -> None:
    target = base_model(tmp_path / "target", tie_word_embeddings=True)
    plain = new_draft(target.decoder, 2, ids)
    copy_layers(target.decoder, plain, (1, 0))
    plain.finish("library")
    mla = latent_spec(plain.spec)
    latent = latent_decoder(plain, mla, random_tensors(plain, mla))
    card = {"target": target.name, "target_revision": target.revision, "base": "a draft", "base_revision": "local-1"}
    save_draft(tmp_path / "draft", latent, target.folder, head_ids=ids, card=card)
    found = load_draft(tmp_path / "draft", target)
    assert found.spec.mla == mla
    assert found.decoder.embedding.data_ptr() == target.decoder.embedding.data_ptr()
    assert read_base(tmp_path / "draft").revision == "local-1"
    ours, theirs = (decoder.forward(IDS).logits for decoder in (found.decoder, latent))
    assert ours is not None
    assert theirs is not None
    scored = slice(None) if ids is None else ids
    assert float((ours - theirs)[..., scored].abs().max()) < 0.05 * float(theirs[..., scored].abs().max())  # bfloat16
    again = load_draft(tmp_path / "draft", target).decoder.forward(IDS).logits
    assert torch.equal(ours, again)  # type: ignore[arg-type]
