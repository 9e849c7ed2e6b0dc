"""Reads a .wandb file: LevelDB log framing (7-byte file header, 32 KiB blocks) around protobuf records."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK = 32768
_HEADER = 7  # checksum 4, length 2, kind 1
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def records(path: Path) -> Iterator[Any]:
    """All protobuf records of the file, in order."""
    from wandb.proto import wandb_internal_pb2

    for payload in _payloads(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(payload)
        yield record


def history(path: Path) -> list[dict[str, Any]]:
    """The logged rows as plain values."""
    return [_items(r.history.item) for r in records(path) if r.WhichOneof("record_type") == "history"]


def run(path: Path) -> Any:
    """The run record: id, group, tags, job type and config."""
    return next(r.run for r in records(path) if r.WhichOneof("record_type") == "run")


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


def _items(items: Any) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def _payloads(content: bytes) -> Iterator[bytes]:
    position, parts = _HEADER, b""
    while position + _HEADER <= len(content):
        left = _BLOCK - position % _BLOCK
        if left < _HEADER:  # padding
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        position += _HEADER
        parts += content[position : position + length]
        position += length
        if kind in (_FULL, _LAST):
            yield parts
            parts = b""
