"""From what the user wrote to a local folder: a folder, a Hub id, a .gguf file or the embedded model."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path

from specbench.models.hub import FILES, HUB_ID, NOT_FILES, first_line
from specbench.models.prepare import EMBEDDED_NAME, gguf_sha256, prepare_embedded, prepare_gguf
from specbench.models.tiny import VARIANTS, prepare_tiny
from specbench.types import ModelError

EMBEDDED = "embedded:smollm2"
_PROBE_BYTES = 2**16


@dataclass(frozen=True)
class Source:
    """Where a model lies on this machine, what tables call it, and which exact version it is."""

    folder: Path
    name: str
    revision: str  # Hub commit, sha256 of the GGUF file, or `local-` and a fingerprint of the folder


def resolve(source: str, *, cache_dir: Path, revision: str | None = None) -> Source:
    """Find, make or fetch the model named by `source`; raises ModelError with what to do instead."""
    if source == EMBEDDED:
        return _converted(prepare_embedded(cache_dir), EMBEDDED_NAME)
    if source.startswith("embedded:"):
        raise ModelError(f"unknown embedded model {source!r}; there is: {EMBEDDED}")
    if source.startswith("tiny:"):
        return _tiny(source, cache_dir)
    path = Path(source).expanduser()
    if source.endswith(".gguf"):
        return _converted(prepare_gguf(path, cache_dir), f"{path.stem} (from GGUF)")
    if path.is_dir():
        return _local(path)
    if not HUB_ID.fullmatch(source):
        raise ModelError(
            f"model {source!r} is no folder here, no .gguf file, no Hub id (owner/name) and not {EMBEDDED}"
        )
    return _hub(source, revision)


def _converted(folder: Path, name: str) -> Source:
    return Source(folder, name, f"gguf-{gguf_sha256(folder)}")


def _tiny(source: str, cache_dir: Path) -> Source:
    variant, _, role = source.removeprefix("tiny:").partition("/")
    if variant not in VARIANTS or role not in ("", "draft"):
        legal = ", ".join(f"tiny:{name} and tiny:{name}/draft" for name in VARIANTS)
        raise ModelError(f"unknown tiny model {source!r}; there are: {legal}")
    folder = prepare_tiny(cache_dir, variant)[role == "draft"]
    return Source(folder, source, f"local-{_fingerprint(folder)}")


def _local(folder: Path) -> Source:
    if not (folder / "config.json").is_file():
        raise ModelError(f"the model folder {folder} holds no config.json")
    sha256 = gguf_sha256(folder)
    return Source(folder, folder.resolve().name, f"gguf-{sha256}" if sha256 else f"local-{_fingerprint(folder)}")


def _fingerprint(folder: Path) -> str:
    """A hash of the small files whole, of each weight file's size, table and some bytes of every tensor region.

    Reading all of a large model for its name would cost minutes; 64 probes a file tell fine-tuned weights apart.
    """
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.is_file() and p.suffix in (".json", ".jinja", ".safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}".encode())
        with path.open("rb") as stream:
            if path.suffix != ".safetensors":
                digest.update(stream.read())
                continue
            table = struct.unpack("<Q", (stream.read(8) + bytes(8))[:8])[0]
            digest.update(stream.read(min(table, size)))
            for probe in range(64):
                stream.seek(size * probe // 64)
                digest.update(stream.read(_PROBE_BYTES))
    return digest.hexdigest()[:16]


def _hub(source: str, revision: str | None) -> Source:
    import huggingface_hub
    from huggingface_hub import errors

    try:
        folder = huggingface_hub.snapshot_download(
            source, revision=revision, allow_patterns=FILES, ignore_patterns=NOT_FILES
        )
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{source} is gated: accept its licence at https://huggingface.co/{source} and set HF_TOKEN, "
            "or give a local copy with model.target=<local folder>"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(f"{source} has no revision {revision!r}") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"{source} was not found on the Hub: check the id; a private model needs HF_TOKEN; "
            "a local copy is given with model.target=<local folder>"
        ) from error
    except Exception as error:  # no network shows itself as many kinds of error, by library and version
        raise ModelError(
            f"cannot fetch {source} from the Hub ({type(error).__name__}: {first_line(error)}). Without a network "
            "fetch it elsewhere with scripts/prefetch.py, or give a local copy with model.target=<local folder>; "
            "a private or gated model needs HF_TOKEN"
        ) from error
    return Source(Path(folder), source, Path(folder).name)
