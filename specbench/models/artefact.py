"""Trained parts as files: a card (JSON) that says what it is for and how it was made, and its tensors beside it.

`NAME.json` holds kind, key, values, card and the hash of `NAME.safetensors`, which is absent where a part has no
tensors. The key names what the part was made for (target, draft, drafter, dtype, template, sampling, ...): it serves
nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from specbench.models.decoder import Decoder
from specbench.models.prepare import file_sha256
from specbench.results.files import read_json, write_json
from specbench.types import ConfigError, DataError, ModelError

_COMMANDS = {"pacer": "python scripts/train_pacer.py"}  # of the kinds that have a command of their own
SHIPPED = Path(__file__).parents[1] / "artefacts" / "controllers"

Key = Mapping[str, str]


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
        path.parent.mkdir(parents=True, exist_ok=True)
        weights = path.with_suffix(".safetensors")
        digest = None
        if self.tensors:
            save_file({name: tensor.contiguous() for name, tensor in self.tensors.items()}, weights)
            digest = file_sha256(weights)
        fields = {"kind": self.kind, "key": self.key, "values": self.values, "card": self.card, "sha256": digest}
        write_json(path, fields)
        return path

    def mismatches(self, key: Key) -> list[str]:
        """In what respects it was made for something else than `key`, one text each."""
        names = sorted({*self.key, *key})
        return [f"{n}: {self.key.get(n)}, here {key.get(n)}" for n in names if self.key.get(n) != key.get(n)]


def load_artefact(path: Path) -> Artefact:
    """Read a card and its tensors; ModelError names a file that is missing, damaged or not a card."""
    try:
        stored = read_json(path)
    except DataError as error:
        raise ModelError(str(error)) from error
    lacking = {"kind", "key", "values", "card", "sha256"} - stored.keys()
    if lacking:
        raise ModelError(f"{path}: not a card of a trained part; it lacks {', '.join(sorted(lacking))}")
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
    """Where trained parts lie, and the key of what is being run.

    `drafting`: the model that drafts, for parts that share its embedding.
    """

    key: Key = field(default_factory=dict)
    folders: Sequence[Path] = (SHIPPED,)
    drafting: Decoder | None = None

    def choose(self, kind: str, given: str | None, **more: str) -> Artefact:
        """The file that the user names, or the stored part of this kind whose key is ours (with `more` added).

        ConfigError says what is different, or how to make one.
        """
        key = {**self.key, **more}
        if given is not None:
            return _given(kind, Path(given).expanduser(), key)
        others = []
        for path in sorted(path for folder in self.folders for path in folder.glob("*.json")):
            if read_json(path).get("kind") != kind:
                continue
            found = load_artefact(path)
            different = found.mismatches(key)
            if not different:
                return found
            others.append(f"{path.name} is for another {'; '.join(different)}")
        command = _COMMANDS.get(kind, f"python scripts/train_controller.py {kind}")
        nearest = f" ({'. '.join(others)})" if others else ""
        raise ConfigError(
            f"method.controller.artefact=null: no {kind} is stored for this model, draft and setting{nearest}; make "
            f"one with `{command} WORDS_OF_RUN.PY`, or name a file"
        )


def _given(kind: str, path: Path, key: Key) -> Artefact:
    if not path.is_file():
        raise ConfigError(f"method.controller.artefact={path}: no such file; legal: the .json card of a trained {kind}")
    found = load_artefact(path)
    if found.kind != kind:
        raise ConfigError(f"method.controller.artefact={path}: holds a {found.kind}, needed is a {kind}")
    different = found.mismatches(key)
    if different:
        raise ConfigError(f"method.controller.artefact={path}: made for another {'; '.join(different)}")
    return found
