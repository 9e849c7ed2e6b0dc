"""Trained parts as files: a card (JSON) that says what it is for and how it was made, and its tensors beside it.

`NAME.json` holds kind, key, values, card and the hash of `NAME.safetensors`, which is absent where a part has no
tensors. The key names what the part was made for (target, draft, drafter, dtype, template, sampling, ...): it serves
nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from specbench.hardware.json_file import digest
from specbench.models.decoder import Decoder
from specbench.models.prepare import file_sha256
from specbench.results.files import make_folder, read_json, write_atomically, write_json
from specbench.types import ConfigError, DataError, ModelError

_COMMANDS = {"pacer": "python scripts/train_pacer.py"}  # of the kinds that have a command of their own
SHIPPED = Path(__file__).parents[1] / "artefacts" / "controllers"

Key = Mapping[str, str]
Found = tuple[Path, dict[str, Any]]  # a card and what it holds
Make = Callable[[str, Key], Path]  # kind and key -> the card of a part that was made for it


@dataclass(frozen=True)
class Artefact:
    """A trained part: `values` is what using it takes beside the tensors, `card` how it was made and how good it is."""

    kind: str
    key: Key
    values: Mapping[str, Any]
    card: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    def save(self, path: Path) -> Path:
        """Write `path` (.json) and, where there are tensors, the .safetensors beside it; gives the path."""
        make_folder(path.parent)
        weights = path.with_suffix(".safetensors")
        digest = None
        if self.tensors:
            write_atomically(weights, save({name: tensor.contiguous() for name, tensor in self.tensors.items()}))
            digest = file_sha256(weights)
        fields = {"kind": self.kind, "key": self.key, "values": self.values, "card": self.card, "sha256": digest}
        write_json(path, fields)
        return path


def mismatches(theirs: Key, ours: Key) -> list[str]:
    """In what respects a part was made for something else, one text each."""
    names = sorted({*theirs, *ours})
    return [f"{n}: {theirs.get(n)}, here {ours.get(n)}" for n in names if theirs.get(n) != ours.get(n)]


def load_artefact(path: Path) -> Artefact:
    """Read a card and its tensors; ModelError names a file that is missing, damaged or not a card."""
    return _with_tensors(_card(path), path)


def key_digest(key: Key) -> str:
    """Eight hex digits that name a key."""
    return digest(dict(key))[:8]


def _card(path: Path) -> dict[str, Any]:
    try:
        stored = read_json(path)
    except DataError as error:
        raise ModelError(str(error)) from error
    lacking = {"kind", "key", "values", "card", "sha256"} - stored.keys()
    if lacking:
        raise ModelError(f"{path}: not a card of a trained part; it lacks {', '.join(sorted(lacking))}")
    return stored


def _with_tensors(stored: Mapping[str, Any], path: Path) -> Artefact:
    tensors: dict[str, Tensor] = {}
    if stored["sha256"] is not None:
        weights = path.with_suffix(".safetensors")
        if not weights.is_file() or file_sha256(weights) != stored["sha256"]:
            raise ModelError(f"{weights}: missing, or not the tensors that {path.name} was written with")
        try:
            tensors = load_file(weights)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{weights} is damaged or incomplete: {error}") from error
    return Artefact(stored["kind"], stored["key"], stored["values"], stored["card"], tensors)


@dataclass(frozen=True)
class Artefacts:
    """Where trained parts lie (the first folder that has one counts), and the key of what is being run.

    `drafting`: the model that drafts, for parts that share its embedding. `make` makes a part that is in no folder
    (None: that is an error). `used` collects what was chosen, for the record of a run.
    """

    key: Key = field(default_factory=dict)
    folders: Sequence[Path] = (SHIPPED,)
    drafting: Decoder | None = None
    make: Make | None = None
    used: list[dict[str, str]] = field(default_factory=list)

    def choose(self, kind: str, given: str | None, **more: str) -> Artefact:
        """The file that the user names, or the stored part of this kind whose key is ours (with `more` added).

        Where there is none it is made, or a ConfigError says what is different and how to make one.
        """
        key = {**self.key, **more}
        nearest: list[str] = []
        found = self._stored(kind, key, nearest) if given is None else _fitting(kind, Path(given).expanduser(), key)
        if found is None and self.make is not None:
            found = _fitting(kind, self.make(kind, key), key)
        if found is None:
            raise ConfigError(_nothing(kind, nearest))
        path, card = found
        self.used.append({"kind": kind, "path": str(path), "sha256": file_sha256(path)})
        return _with_tensors(card, path)

    def _stored(self, kind: str, key: Key, nearest: list[str]) -> Found | None:
        """The card for `key`; what is different about the others of this kind goes to `nearest`."""
        for path in (path for folder in self.folders for path in sorted(folder.glob("*.json"))):
            stored = _card(path)
            if stored["kind"] != kind:
                continue
            different = mismatches(stored["key"], key)
            if not different:
                return path, stored
            nearest.append(f"{path.name} is for another {'; '.join(different)}")
        return None


def _nothing(kind: str, others: Sequence[str]) -> str:
    command = _COMMANDS.get(kind, f"python scripts/train_controller.py {kind}")
    nearest = f" ({'. '.join(others)})" if others else ""
    return (
        f"method.controller.artefact=null: no {kind} is stored for this model, draft and setting{nearest}; make one "
        f"with `{command} WORDS_OF_RUN.PY`, let a run make it with artefact.if_missing=build, or name a file"
    )


def _fitting(kind: str, path: Path, key: Key) -> Found:
    """The card of a file; ConfigError where it is of another kind or for something else."""
    if not path.is_file():
        raise ConfigError(f"method.controller.artefact={path}: no such file; legal: the .json card of a trained {kind}")
    stored = _card(path)
    if stored["kind"] != kind:
        raise ConfigError(f"method.controller.artefact={path}: holds a {stored['kind']}, needed is a {kind}")
    different = mismatches(stored["key"], key)
    if different:
        raise ConfigError(f"method.controller.artefact={path}: made for another {'; '.join(different)}")
    return path, stored
