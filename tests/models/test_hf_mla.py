"""The transformers library reads converted folders: the same logits as ours, in every way that it reads and decodes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from specbench.models.checkpoint import LoadedModel, load_model
from specbench.models.draft import copy_layers, export_library, new_draft, save_draft
from specbench.models.hf_generate import HfGenerator, load_hf
from specbench.models.hf_mla import MultiHeadLatentAttention
from specbench.models.latent_model import latent_decoder, save_latent
from specbench.types import ModelError, Sampling
from tests.models.latents import SPLIT, latent_spec, random_tensors
from tests.models.pairs import random_ids
from tests.models.test_latent_model import FORMS, base_model, converted, loaded

IDS = random_ids(30)
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.fixture(scope="module", params=SPLIT)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted folder of every form; those of Llama with scaled frequencies and tied embeddings."""
    root, family = tmp_path_factory.mktemp("latent"), FORMS[request.param][0]
    scaled = {"rope_parameters": LLAMA3, "tie_word_embeddings": True} if family == "llama" else {}
    base = base_model(root / "base", family, **scaled)
    mla, tensors = converted(base, request.param)
    return save_latent(root / "latent", base, mla, tensors, provenance={"converter": "by hand"})


def library(folder: Path, **options: Any) -> Any:
    return load_hf(folder, dtype=torch.float32, device="cpu", **options)


def ours(folder: Path, ids: Tensor = IDS) -> Tensor:
    logits = loaded(folder).decoder.forward(ids).logits
    assert logits is not None
    return logits


def near(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)


def decoded(model: Any, ids: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Logits of ids read in chunks through the library's own cache."""
    cache, parts = None, []
    with torch.no_grad():
        for chunk in ids.split(sizes, dim=1):
            out = model(chunk, cache=cache, use_cache=True)
            cache = out.cache
            parts.append(out.logits)
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_logits_are_ours(folder: Path, attention: str) -> None:
    model = library(folder, attn_implementation=attention)
    with torch.no_grad():
        near(model(IDS).logits, ours(folder))


@pytest.mark.parametrize("sizes", [(20, *(1,) * 10), (9, 1, 8, 12)], ids=str)
def test_cached_decoding_gives_our_logits(folder: Path, sizes: tuple[int, ...]) -> None:
    near(decoded(library(folder), IDS, sizes), ours(folder))


def test_its_cache_holds_what_ours_holds(folder: Path) -> None:
    model, spec = library(folder), loaded(folder).spec
    assert spec.mla is not None
    with torch.no_grad():
        cache = model(IDS, use_cache=True).cache
    for index, layer in enumerate(cache.layers):
        assert (layer.keys.numel() + layer.values.numel()) == IDS.shape[1] * spec.mla.cache_width(index)


def test_rolled_back_cache_decodes_on(folder: Path) -> None:
    model = library(folder)
    with torch.no_grad():
        cache = model(torch.cat([IDS[:, :20], random_ids(4, seed=8)], dim=1), use_cache=True).cache
        cache.crop(-4)
        near(model(IDS[:, 20:], cache=cache).logits, ours(folder)[:, 20:])


def test_left_padding_changes_nothing(folder: Path) -> None:
    model = library(folder)
    padded = torch.cat([torch.zeros(1, 5, dtype=torch.int64), IDS], dim=1)
    mask = torch.cat([torch.zeros(1, 5, dtype=torch.int64), torch.ones_like(IDS)], dim=1)
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    with torch.no_grad():
        near(model(padded, attention_mask=mask, position_ids=positions).logits[:, 5:], ours(folder))


@pytest.mark.parametrize("mode", ["ar", "assisted"])
def test_generation_is_greedy_over_our_logits(folder: Path, mode: str) -> None:
    draft = library(folder) if mode == "assisted" else None
    generator = HfGenerator(library(folder), mode=mode, sampling=Sampling(), draft=draft)
    found = generator.generate(IDS[0, :6].tolist(), max_new_tokens=12, seed=0)
    whole = torch.tensor([[*IDS[0, :6].tolist(), *found.tokens]])
    assert tuple(ours(folder, whole)[0, 5:-1].argmax(-1).tolist()) == found.tokens


def test_saved_by_the_library_and_read_again_by_both(folder: Path, tmp_path: Path) -> None:
    library(folder).save_pretrained(tmp_path)
    assert (tmp_path / "hf_mla.py").is_file()
    with torch.no_grad():
        near(library(tmp_path)(IDS).logits, ours(folder))
    near(ours(tmp_path), ours(folder))


@pytest.mark.slow
def test_a_folder_loads_where_this_project_is_not_installed(tmp_path: Path) -> None:
    base = base_model(tmp_path / "base")
    folder = save_latent(tmp_path / "latent", base, *converted(base), provenance={})
    code = (
        "import sys, torch; from transformers import AutoModelForCausalLM as A; "
        "m = A.from_pretrained(sys.argv[1], trust_remote_code=True, dtype=torch.float32); "
        "assert not any(n.startswith('specbench') for n in sys.modules); "
        "torch.save(m(torch.load(sys.argv[2])).logits.detach(), sys.argv[3]); m.save_pretrained(sys.argv[4])"
    )
    torch.save(IDS, tmp_path / "ids.pt")
    again = tmp_path / "again"
    arguments = [str(folder), str(tmp_path / "ids.pt"), str(tmp_path / "logits.pt"), str(again)]
    environment = os.environ | {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    near(torch.load(tmp_path / "logits.pt"), ours(folder))
    near(ours(again), ours(folder))
    assert (again / "modeling_mla.py").is_file()


def test_an_exported_draft_loads_too(tmp_path: Path) -> None:
    target = base_model(tmp_path / "target")
    plain = new_draft(target.decoder, 2, None)
    copy_layers(target.decoder, plain, (1, 0))
    plain.finish("library")
    mla = latent_spec(plain.spec)
    latent = latent_decoder(plain, mla, random_tensors(plain, mla))
    card = {"target": target.name, "target_revision": target.revision}
    save_draft(tmp_path / "draft", latent, target.folder, head_ids=None, card=card)
    export_library(tmp_path / "draft", target.folder, tmp_path / "out")
    with torch.no_grad():
        near(library(tmp_path / "out")(IDS).logits, ours(tmp_path / "out"))


def test_the_form_that_needs_positions_of_cached_rows_is_refused(tmp_path: Path) -> None:
    base = base_model(tmp_path / "base")
    folder = save_latent(tmp_path / "latent", base, *converted(base, "svd"), provenance={})
    with pytest.raises(ModelError, match=r"mla\.form=split"):
        library(folder)


def test_every_layer_is_replaced(folder: Path) -> None:
    model = library(folder)
    assert all(isinstance(layer.self_attn, MultiHeadLatentAttention) for layer in model.model.layers)
    assert isinstance(AutoModelForCausalLM.from_config(model.config), type(model))
    assert isinstance(load_model(str(folder), dtype=torch.float32, device="cpu", cache_dir=folder), LoadedModel)
