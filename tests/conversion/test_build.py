"""A conversion from folder to folder: what it writes, what it shares, and how it goes on after a kill."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.conversion import reconstruct
from specbench.conversion.build import convert
from specbench.conversion.calibration import Calibration
from specbench.models.checkpoint import LoadedModel, load_model
from specbench.models.draft import load_draft, new_draft, own_slots, save_draft
from specbench.models.latent_model import check_base, read_base
from specbench.types import ConfigError, ModelError
from tests.conversion.models import config

QUICK: dict[str, Any] = {"updates": 6, "batch": 4}


def load(source: str, cache: Path, dtype: torch.dtype = torch.float32) -> LoadedModel:
    return load_model(source, dtype=dtype, device="cpu", cache_dir=cache)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def draft(cache: Path) -> LoadedModel:
    return load("tiny:plain/draft", cache)


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    ids = torch.randint(256, (12, 24), generator=torch.Generator().manual_seed(0))
    return Calibration(ids[:8], ids[8:], {"texts": {"random": 12}})


def made(base: LoadedModel, text: Calibration, folder: Path, work: Path, **changes: Any) -> Path:
    return convert(base, config(reconstruct=QUICK, **changes), text, folder, work=work)


def weights(folder: Path, cache: Path) -> dict[str, torch.Tensor]:
    return {name: slot.clone() for name, slot in load(str(folder), cache).decoder.slots().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", ["transmla", "mha2mla", "svd", "care"])
def test_the_folder_is_a_model_with_a_card(
    kind: str, draft: LoadedModel, calibration: Calibration, cache: Path, tmp_path: Path
) -> None:
    folder = made(draft, calibration, tmp_path / "out", tmp_path / "work", converter=kind, factor=None, ranks=None)
    found = load(str(folder), cache)
    assert found.chat is not None
    assert found.spec.mla is not None
    base = read_base(folder)
    assert (base.name, base.revision) == (draft.name, draft.revision)
    card = base.provenance
    assert card["settings"]["budget"] == 0.5
    assert card["conversion_seconds"] > 0
    assert card["tuning_seconds"] > 0
    assert [layer["rank"] for layer in card["layers"]] == list(found.spec.mla.ranks)
    for layer in card["layers"]:
        assert 0 < layer["error_after"] <= layer["error_before"]
    measured = found.decoder.new_cache(8).nbytes() / draft.decoder.new_cache(8).nbytes()
    assert measured == pytest.approx(0.5, rel=0.01)


def test_variants_share_what_they_can(
    draft: LoadedModel, calibration: Calibration, cache: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    kinds = [{"reconstruction": "none"}, {"reconstruction": "kv"}, {"reconstruction": "functional"}]
    found = [made(draft, calibration, tmp_path / str(i), work, **kind) for i, kind in enumerate(kinds)]
    assert sorted(path.name.partition("-")[0] for path in work.iterdir()) == [
        "converted",
        *["finished"] * 3,
        "statistics",
    ]
    made(draft, calibration, tmp_path / "other", work, converter="mha2mla", reconstruction="none")
    assert len(list(work.glob("statistics-*"))) == 1
    assert len(list(work.glob("converted-*"))) == 2
    none, functional = read_base(found[0]).provenance, read_base(found[2]).provenance
    assert none["tuning_seconds"] == 0.0
    assert none["conversion_seconds"] == functional["conversion_seconds"]
    errors = [
        [layer[key] for layer in card["layers"]] for card, key in ((none, "error_after"), (functional, "error_before"))
    ]
    assert errors[0] == pytest.approx(errors[1])


def test_a_killed_conversion_goes_on_with_the_next_layer(
    draft: LoadedModel, calibration: Calibration, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = made(draft, calibration, tmp_path / "whole", tmp_path / "work")
    finish, finished = reconstruct.Reconstruction._finish, []

    def noted(self: Any, index: int, *rest: Any) -> Any:
        if index == 1 and finished == [0]:
            finished.append("killed")
            raise KeyboardInterrupt
        finished.append(index)
        return finish(self, index, *rest)

    monkeypatch.setattr(reconstruct.Reconstruction, "_finish", noted)
    again = tmp_path / "again"
    with pytest.raises(KeyboardInterrupt):
        made(draft, calibration, again, tmp_path / "work2")
    assert not again.exists()
    made(draft, calibration, again, tmp_path / "work2")
    assert finished == [0, "killed", 1], "the first layer is not done again"
    assert same(weights(whole, cache), weights(again, cache))


def test_a_trained_draft_stays_one(calibration: Calibration, cache: Path, tmp_path: Path) -> None:
    target = load("tiny:plain", cache)
    ids = torch.arange(0, 261, 3)
    trained = new_draft(target.decoder, 2, ids)
    for name, slot in own_slots(trained).items():
        slot.copy_(load("tiny:plain/draft", cache).decoder.slots()[name])
    card = {"target": target.name, "target_revision": target.revision}
    save_draft(tmp_path / "trained", trained.finish("library"), target.folder, head_ids=ids, card=card)
    base = load_draft(tmp_path / "trained", target)
    settings = config(reconstruct=QUICK)
    folder = convert(base, settings, calibration, tmp_path / "out", work=tmp_path / "work", target=target)
    found = load_draft(folder, target)
    assert found.spec.mla is not None
    assert found.decoder.embedding is target.decoder.embedding
    logits = found.decoder.forward(torch.tensor([[1, 2, 3]])).logits
    assert logits is not None
    assert torch.isfinite(logits[0, 0]).sum() == len(ids)
    assert len(read_base(folder).provenance["layers"]) == 2
    check_base(folder, base)


def test_another_base_is_refused(draft: LoadedModel, calibration: Calibration, cache: Path, tmp_path: Path) -> None:
    folder = made(draft, calibration, tmp_path / "out", tmp_path / "work", reconstruction="none")
    check_base(folder, draft)
    with pytest.raises(ModelError, match=r"converted from tiny:plain/draft .* not from tiny:zero/draft"):
        check_base(folder, load("tiny:zero/draft", cache))


def test_settings_that_do_not_fit_are_refused_before_anything_is_written(
    draft: LoadedModel, calibration: Calibration, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"method\.rank=1000: .* 1 to"):
        made(draft, calibration, tmp_path / "out", tmp_path / "work", rank=1000)
    with pytest.raises(ConfigError, match=r"method\.converter=none: nothing to convert"):
        made(draft, calibration, tmp_path / "out", tmp_path / "work", converter="none")
    assert not (tmp_path / "out").exists()


def test_a_damaged_stage_is_named(draft: LoadedModel, calibration: Calibration, tmp_path: Path) -> None:
    made(draft, calibration, tmp_path / "out", tmp_path / "work", reconstruction="none")
    path = next((tmp_path / "work").glob("statistics-*/layer-000.safetensors"))
    path.write_bytes(path.read_bytes()[:100])
    shutil.rmtree(next((tmp_path / "work").glob("converted-*")))
    with pytest.raises(ModelError, match=r"layer-000\.safetensors is damaged: remove it"):
        made(draft, calibration, tmp_path / "again", tmp_path / "work", reconstruction="none")


def test_folding_is_chosen_by_held_out_perplexity(draft: LoadedModel, calibration: Calibration, tmp_path: Path) -> None:
    folder = made(draft, calibration, tmp_path / "out", tmp_path / "work", freqfold="auto", reconstruction="none")
    card = read_base(folder).provenance
    trials = {int(fold): value for fold, value in card["freqfold_perplexity"].items()}
    assert trials[card["freqfold"]] == min(trials.values())
    assert len(trials) >= 2
