"""method=mla in a whole run: a draft is converted where it is missing, found again, and never another model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.conversion import calibration
from specbench.models.checkpoint import load_model
from specbench.models.draft import copy_layers, new_draft, save_draft
from specbench.results.files import read_json
from specbench.runner.converted import converted_draft
from specbench.types import ConfigError, ModelError
from tests.few_documents import few_documents
from tests.runner.runs import measured, tiny_config

WORDS = (
    "method=mla",
    "method.freqfold=1",
    "method.reconstruct.updates=4",
    "method.calibration.num_sequences=8",
    "method.calibration.held_out=4",
    "method.calibration.sequence_length=32",
)


@pytest.fixture(scope="module", autouse=True)
def few_passages() -> Any:
    with few_documents(calibration):
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mla")


def settings(place: Path, *words: str) -> Any:
    return tiny_config([*WORDS, *words], place / "results", place / "cache")


def folders(place: Path) -> set[str]:
    return {path.parent.name for path in (place / "cache" / "mla").glob("*/config.json")}


def test_a_run_converts_once_and_says_how(place: Path) -> None:
    found = measured(settings(place))
    assert found.error is None
    assert found.summary["exact_match_rate"] == 1.0
    assert read_json(found.run_dir / "environment.json")["draft"]["name"].startswith("tiny_plain_draft-transmla")
    made = folders(place)
    assert len(made) == 1
    card = converted_draft(settings(place)).card
    assert [layer["layer"] for layer in card["layers"]] == [0, 1]
    assert folders(place) == made


def test_other_settings_are_another_draft(place: Path) -> None:
    before = folders(place)
    found = converted_draft(settings(place, "method.budget=0.75", "method.reconstruction=none"))
    assert Path(found.source).name in folders(place) - before


def test_without_a_draft_the_target_drafts_for_itself(place: Path) -> None:
    found = converted_draft(settings(place, "model.draft=null"))
    assert "tiny_plain-transmla" in found.source
    assert len(found.card["layers"]) == 6
    same = converted_draft(settings(place, "method.source=target"))
    assert same.source == found.source


@pytest.fixture(scope="module")
def trained(place: Path) -> Path:
    """A trained draft of the tiny target that can say a third of all tokens."""
    target = load_model("tiny:plain", dtype=torch.float32, device="cpu", cache_dir=place / "cache")
    ids = torch.arange(0, target.spec.vocab_size, 3)
    draft = new_draft(target.decoder, 2, ids)
    copy_layers(target.decoder, draft, [0, 1])
    card = {"target": target.name, "target_revision": target.revision}
    save_draft(place / "trained", draft.finish("library"), target.folder, head_ids=ids, card=card)
    return place / "trained"


def test_a_trained_draft_is_converted_on_its_target(place: Path, trained: Path) -> None:
    config = settings(place, f"model.draft={trained}")
    found = measured(config)
    assert found.error is None
    assert found.summary["exact_match_rate"] == 1.0
    assert read_json(found.run_dir / "environment.json")["draft"]["name"].startswith("trained-transmla")
    assert converted_draft(config).card["layers"][1]["error_after"] > 0


def test_the_original_is_an_arm_too(place: Path) -> None:
    before = folders(place)
    found = converted_draft(settings(place, "method.converter=none"))
    assert (found.source, dict(found.card)) == ("tiny:plain/draft", {})
    assert folders(place) == before


def test_a_missing_draft_can_be_an_error_that_names_the_command(place: Path) -> None:
    with pytest.raises(ConfigError, match=r"artefact\.if_missing=error: .*scripts/convert_mla\.py"):
        converted_draft(settings(place, "artefact.if_missing=error", "method.budget=0.6"))


def test_a_folder_is_used_for_its_own_base_only(place: Path) -> None:
    made = converted_draft(settings(place)).source
    assert converted_draft(settings(place, f"method.folder={made}", "method.budget=0.3")).source == made
    with pytest.raises(ModelError, match=r"was converted from tiny:plain/draft"):
        converted_draft(settings(place, f"method.folder={made}", "method.source=target"))
    with pytest.raises(ConfigError, match=r"method\.folder=.*nowhere: no converted model"):
        converted_draft(settings(place, "method.folder=/nowhere"))
    with pytest.raises(ConfigError, match=r"method\.source=draft: this model names no draft"):
        converted_draft(settings(place, "method.source=draft", "model.draft=null"))


def test_longdoc_is_not_measured_on_a_draft_that_read_it(place: Path) -> None:
    with pytest.raises(ConfigError, match="longdoc has no train split"):
        converted_draft(settings(place, "task=longdoc", "method.calibration.sources=[longdoc]"))
