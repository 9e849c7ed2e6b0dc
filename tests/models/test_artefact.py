"""Trained parts: written whole, read back, and never used for something that they were not made for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specbench.models.artefact import Artefact, Artefacts, load_artefact
from specbench.types import ConfigError, ModelError

KEY = {"target": "t1", "draft": "d1", "dtype": "float32", "drafter": "sps"}


def part(**key: str) -> Artefact:
    tensors = {"weight": torch.arange(6.0).view(2, 3), "scale": torch.tensor(2.0)}
    return Artefact("scalars", {**KEY, **key}, {"width": 3}, {"seed": 1}, tensors)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    found = load_artefact(part().save(tmp_path / "new" / "a.json"))
    assert (found.kind, found.key, found.values, found.card) == ("scalars", KEY, {"width": 3}, {"seed": 1})
    assert torch.equal(found.tensors["weight"], part().tensors["weight"])
    assert found.tensors["scale"].shape == ()


def test_a_card_without_tensors_is_one_file(tmp_path: Path) -> None:
    Artefact("tuned", KEY, {"num_draft_tokens": 4}).save(tmp_path / "a.json")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert load_artefact(tmp_path / "a.json").tensors == {}


def test_damage_is_named(tmp_path: Path) -> None:
    path = part().save(tmp_path / "a.json")
    weights = path.with_suffix(".safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(ModelError, match=r"a\.safetensors: missing, or not the tensors"):
        load_artefact(path)
    weights.unlink()
    with pytest.raises(ModelError, match=r"a\.safetensors: missing"):
        load_artefact(path)
    path.write_text("{}")
    with pytest.raises(ModelError, match=r"a\.json: not a card.*values"):
        load_artefact(path)
    path.write_text("{")
    with pytest.raises(ModelError, match="not readable JSON"):
        load_artefact(path)


def test_the_part_of_this_key_is_chosen_from_all_folders(tmp_path: Path) -> None:
    part(target="t2").save(tmp_path / "one" / "a.json")
    part(dtype="bfloat16").save(tmp_path / "two" / "a.json")
    part().save(tmp_path / "two" / "b.json")
    artefacts = Artefacts({"target": "t1", "draft": "d1", "dtype": "float32"}, (tmp_path / "one", tmp_path / "two"))
    assert artefacts.choose("scalars", None, drafter="sps").key == KEY


@pytest.mark.parametrize("name", KEY)
def test_a_part_of_another_key_is_refused_and_the_difference_named(tmp_path: Path, name: str) -> None:
    path = part(**{name: "other"}).save(tmp_path / "a.json")
    artefacts = Artefacts(KEY, (tmp_path,))
    with pytest.raises(ConfigError, match=f"no scalars is stored.*another {name}: other, here {KEY[name]}.*train_cont"):
        artefacts.choose("scalars", None)
    with pytest.raises(ConfigError, match=f"made for another {name}: other, here {KEY[name]}"):
        artefacts.choose("scalars", str(path))


def test_a_wrong_file_is_one_clear_error(tmp_path: Path) -> None:
    path = part().save(tmp_path / "a.json")
    with pytest.raises(ConfigError, match="holds a scalars, needed is a specdecpp"):
        Artefacts(KEY).choose("specdecpp", str(path))
    with pytest.raises(ConfigError, match="no such file"):
        Artefacts(KEY).choose("scalars", str(tmp_path / "b.json"))
    with pytest.raises(ConfigError, match="no tuned is stored for this model"):
        Artefacts(KEY, (tmp_path,)).choose("tuned", None)
