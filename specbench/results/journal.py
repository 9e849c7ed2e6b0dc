"""An append-only file with one JSON line per finished conversation that survives a kill at any byte."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specbench.results.files import disk_errors, sync, write_atomically
from specbench.types import DataError

logger = logging.getLogger(__name__)


class Journal:
    """Finished conversations in the order they finished; a half-written last line is cut off on opening.

    Raises DataError naming the line when any other line is damaged, SpecbenchError when the disk is full.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open()

    def _open(self) -> None:
        self._size, self.ids = _recover(self.path)
        with disk_errors(self.path):
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o644)
            os.ftruncate(self._descriptor, self._size)
            sync(self.path.parent)

    def append(self, sample_id: str, record: dict[str, Any]) -> None:
        """Add one conversation; when this returns, it is on the disk."""
        line = json.dumps({"sample_id": sample_id, **record}, ensure_ascii=False).encode() + b"\n"
        with disk_errors(self.path):
            try:
                _write_all(self._descriptor, line, self._size)
                os.fsync(self._descriptor)
            except OSError:
                os.ftruncate(self._descriptor, self._size)  # a half line would hide the next one
                raise
        self._size += len(line)
        self.ids.add(sample_id)

    def read(self) -> Iterator[dict[str, Any]]:
        """The records, oldest first."""
        with self.path.open("rb") as file:
            for line in file:
                yield json.loads(line)

    def drop(self, sample_ids: set[str]) -> None:
        """Remove these conversations; a kill leaves all of them or none."""
        if not sample_ids & self.ids:
            return
        kept = [line for line in self.path.read_bytes().splitlines(keepends=True) if _sample_id(line) not in sample_ids]
        self.close()
        write_atomically(self.path, b"".join(kept))
        self._open()

    def close(self) -> None:
        """Let go of the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def remove(self) -> None:
        """Delete the file: its content now lives elsewhere."""
        self.close()
        self.path.unlink(missing_ok=True)


def recorded_ids(path: Path) -> set[str]:
    """Ids of the conversations in a journal that may be another process's; none where there is no file."""
    return _recover(path)[1]


def _write_all(descriptor: int, content: bytes, offset: int) -> None:
    while content:
        written = os.pwrite(descriptor, content, offset)
        content, offset = content[written:], offset + written


def _recover(path: Path) -> tuple[int, set[str]]:
    """Bytes that hold whole lines, and the sample ids in them."""
    size, ids = 0, set[str]()
    if not path.exists():
        return size, ids
    total = path.stat().st_size
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            sample_id = _sample_id(line)
            if sample_id is None:
                if size + len(line) < total:
                    raise DataError(f"{path}, line {number}: damaged; without this line only its sample runs again")
                logger.warning("%s: the last line was cut by a kill; its sample runs again", path)
                break
            size += len(line)
            ids.add(sample_id)
    return size, ids


def _sample_id(line: bytes) -> str | None:
    if not line.endswith(b"\n"):
        return None
    try:
        return str(json.loads(line)["sample_id"])
    except (ValueError, KeyError, TypeError):
        return None
