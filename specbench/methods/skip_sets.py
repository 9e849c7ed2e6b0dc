"""Stored skip sets: a small JSON file that belongs to one model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from specbench.methods.layer_skip import checked_set
from specbench.results.files import make_folder, read_json, write_json
from specbench.types import ConfigError


def given_set(value: str | Iterable[int], *, num_sublayers: int, model: str | None) -> frozenset[int]:
    """What `method.skip_set` names: sublayers, or a file written by `store_set`.

    ConfigError when the file was made for other weights than `model` (the revision of the loaded model).
    """
    if not isinstance(value, str):
        return checked_set(value, num_sublayers)
    path = Path(value).expanduser()
    if not path.is_file():
        raise ConfigError(f"method.skip_set={value}: no such file; a list of sublayers is legal too, like [3,5,8]")
    stored = read_json(path)
    if not {"model", "sublayers"} <= stored.keys():
        raise ConfigError(f"method.skip_set={value}: the file must hold `model` and `sublayers`")
    if stored["model"] != model:
        raise ConfigError(f"method.skip_set={value}: made for model {stored['model']}, but this one is {model}")
    return checked_set(stored["sublayers"], num_sublayers)


def store_set(path: Path, skip: Iterable[int], *, model: str, card: Mapping[str, Any]) -> Path:
    """Write a set with the revision of the model it was found for; `card` says how it was found."""
    make_folder(path.parent)
    write_json(path, {"model": model, "sublayers": sorted(skip), **card})
    return path
