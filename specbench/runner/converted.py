"""The draft of method=mla: found among those made before, or converted now, before anything is timed."""

from __future__ import annotations

import logging
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from specbench.config import RunConfig
from specbench.config.methods_mla import MlaConfig
from specbench.conversion.build import VERSION, convert
from specbench.conversion.calibration import check_disjoint, read_calibration
from specbench.hardware.json_file import digest
from specbench.hardware.threads import set_num_threads
from specbench.models.checkpoint import LoadedModel, load_model
from specbench.models.draft import draft_source, find_draft, load_draft
from specbench.models.latent_model import CONFIG, check_base
from specbench.models.source import Source, resolve
from specbench.results.files import make_folder
from specbench.types import ConfigError, ModelError

log = logging.getLogger(__name__)

_DTYPE = torch.float32  # master weights; linear algebra is float64


@dataclass(frozen=True)
class Converted:
    """A draft to load: as `model.draft` names one, with its revision, and its card ({} = the original)."""

    source: str
    revision: str | None
    card: Mapping[str, Any] = field(default_factory=dict)


def converted_draft(config: RunConfig, out: Path | None = None) -> Converted:
    """The converted draft that `config` describes, made now where `artefact.if_missing` allows it.

    `out`: where a new one is written instead of the cache. Raises ConfigError, or ModelError for a folder that was
    converted from another model.
    """
    method = config.method
    assert isinstance(method, MlaConfig)
    base = _Base.of(config, method)
    if method.converter == "none":
        return Converted(base.source, base.given_revision)
    if method.folder is not None:
        return _checked(Path(method.folder).expanduser(), base)
    check_disjoint(method.calibration, config.task.name)
    folder = out or _cache(config) / _name(config, base, method)
    make_folder(folder.parent)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if not (folder / CONFIG).is_file():
            _make(config, base, method, folder)
    return _checked(folder, base)


@dataclass(frozen=True)
class _Base:
    """The model that is converted: as the user names it, and which one that is here."""

    source: str
    given_revision: str | None
    found: Source
    trained: Path | None  # the folder of a trained draft, which lives on the target's embedding
    target: Source

    @classmethod
    def of(cls, config: RunConfig, method: MlaConfig) -> _Base:
        model, cache_dir = config.model, Path(config.paths.cache_dir).expanduser()
        if method.source == "draft" and model.draft is None:
            raise ConfigError("method.source=draft: this model names no draft; legal: auto, target, or set model.draft")
        target = resolve(model.target, cache_dir=cache_dir, revision=model.target_revision)
        if method.source == "target" or model.draft is None:
            return cls(model.target, model.target_revision, target, None, target)
        trained = find_draft(model.draft)
        if trained is not None:
            return cls(model.draft, model.draft_revision, draft_source(trained), trained, target)
        found = resolve(model.draft, cache_dir=cache_dir, revision=model.draft_revision)
        return cls(model.draft, model.draft_revision, found, None, target)


def _checked(folder: Path, base: _Base) -> Converted:
    """A folder on disk, if it holds a model that was converted from this very base."""
    if not (folder / CONFIG).is_file():
        raise ConfigError(f"method.folder={folder}: no converted model; make one with scripts/convert_mla.py")
    return Converted(str(folder), None, check_base(folder, base.found).provenance)


def _make(config: RunConfig, base: _Base, method: MlaConfig, folder: Path) -> None:
    if config.artefact.if_missing == "error":
        raise ConfigError(
            f"artefact.if_missing=error: {base.found.name} was not converted with these settings yet; do it with "
            "`python scripts/convert_mla.py WORDS_OF_RUN.PY`, name its folder with method.folder, or set "
            "artefact.if_missing=build"
        )
    if config.hardware.num_threads is not None:
        set_num_threads(config.hardware.num_threads)
    model, target = _load(config, base)
    if model.chat is None:
        raise ModelError(f"{model.folder} holds no tokenizer; calibration text cannot be encoded")
    text = read_calibration(method.calibration, model.chat, data=config.data, date=config.model.template_day)
    convert(model, method, text, folder, work=_cache(config) / "work", target=target)


def _load(config: RunConfig, base: _Base) -> tuple[LoadedModel, LoadedModel | None]:
    """The base in float32, and the target where the base lives on it."""
    model = config.model
    how: dict[str, Any] = {
        "dtype": _DTYPE,
        "device": config.hardware.device,
        "cache_dir": Path(config.paths.cache_dir).expanduser(),
        "chat_template": model.chat_template,
    }
    if base.trained is None:
        return load_model(base.source, revision=base.given_revision, **how), None
    target = load_model(model.target, revision=model.target_revision, **how)
    return load_draft(base.trained, target), target


def _cache(config: RunConfig) -> Path:
    return Path(config.paths.cache_dir).expanduser() / "mla"


def _name(config: RunConfig, base: _Base, method: MlaConfig) -> str:
    """A folder name that says what it is, and a hash of all that its weights depend on."""
    parts = {part: asdict(getattr(method, part)) for part in ("reconstruct", "calibration")}
    key = {
        "version": VERSION,
        "base": base.found.revision,
        "target": base.target.revision if base.trained else None,
        "settings": method.conversion() | parts,
        "data": [config.data.source, config.data.dir],
        "date": config.model.template_date,
        "python": platform.python_version(),  # whose documentation is read
    }
    words = re.sub(r"[^A-Za-z0-9_.]+", "_", base.found.name)
    return f"{words}-{method.converter}-{method.reconstruction}-{digest(key)}"
