"""Reads a .wandb file: LevelDB log framing (7-byte file header, 32 KiB blocks) around protobuf records."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK = 32768
_HEADER = 7  # checksum 4, length 2, kind 1
_TRIES = 20
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def records(path: Path) -> list[Any]:
    """All protobuf records of a run that ended, in order; a busy machine may still be writing them, `exit` last."""
    for _ in range(_TRIES):
        found = list(_written(path))
        if found and found[-1].WhichOneof("record_type") == "exit":
            return found
        time.sleep(1.0)
    raise AssertionError(f"{path} ({path.stat().st_size} bytes) does not end")


def history(path: Path) -> list[dict[str, Any]]:
    """The logged rows as plain values."""
    return [_items(r.history.item) for r in records(path) if r.WhichOneof("record_type") == "history"]


def run(path: Path) -> Any:
    """The first run record: id, group, tags, job type and config."""
    return next(record.run for record in records(path) if record.WhichOneof("record_type") == "run")


def config(path: Path) -> dict[str, Any]:
    """The run's config."""
    return {item.key: json.loads(item.value_json) for item in run(path).config.update}


def summary(path: Path) -> dict[str, Any]:
    """The last value of every summary key."""
    found: dict[str, Any] = {}
    for record in records(path):
        if record.WhichOneof("record_type") == "summary":
            found |= _items(record.summary.update)
    return found


def charts(path: Path) -> dict[str, dict[str, Any]]:
    """Settings of every custom chart, by its key."""
    updates = [item for r in records(path) if r.WhichOneof("record_type") == "config" for item in r.config.update]
    places = [(list(item.nested_key), item.value_json) for item in updates]
    return {place[-1]: json.loads(text) for place, text in places if place[:2] == ["_wandb", "visualize"]}


def artifacts(path: Path) -> dict[tuple[str, str], list[str]]:
    """(type, name) of every logged artifact, with the paths of its files."""
    logged = [r.request.log_artifact.artifact for r in records(path) if r.request.HasField("log_artifact")]
    logged += [r.artifact for r in records(path) if r.WhichOneof("record_type") == "artifact"]
    return {(found.type, found.name): [entry.path for entry in found.manifest.contents] for found in logged}


def table(path: Path, name: str) -> list[dict[str, Any]]:
    """The rows of the only logged table of a name, from the folder that syncs."""
    (file,) = (path.parent / "files" / "media" / "table").rglob(f"{name}_*.table.json")
    content = json.loads(file.read_text(encoding="utf-8"))
    return [dict(zip(content["columns"], row, strict=True)) for row in content["data"]]


def _items(items: Any) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def _written(path: Path) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2

    for payload in _payloads(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(payload)
        yield record


def _payloads(content: bytes) -> Iterator[bytes]:
    """The payloads that are there to their last byte."""
    position, parts = _HEADER, b""
    while position + _HEADER <= len(content):
        left = _BLOCK - position % _BLOCK
        if left < _HEADER:  # padding
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        position += _HEADER
        if position + length > len(content):  # still being written
            return
        parts += content[position : position + length]
        position += length
        if kind in (_FULL, _LAST):
            yield parts
            parts = b""
