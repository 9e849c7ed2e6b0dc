"""Small files that are either there whole or not at all, and one clear error when the disk is full."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from specbench.types import DataError, SpecbenchError


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an OSError while writing `path` into a SpecbenchError that says where and what is kept."""
    try:
        yield
    except OSError as error:
        reason = "no space left on the disk" if error.errno == errno.ENOSPC else str(error)
        raise SpecbenchError(
            f"{path}: could not write ({reason}). Every sample finished before is kept; "
            "make room and start the same command again to continue."
        ) from error


def make_folder(path: Path) -> None:
    """Make a folder with its parents where it is not there yet; SpecbenchError says why it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecbenchError(
            f"{path}: cannot make this folder ({error.strerror or error}); "
            "name another one (paths.cache_dir, paths.results_dir, --out, --to)"
        ) from error


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` so that a kill leaves the old file or the new one, never half of it."""
    _replace(path, lambda temporary: temporary.write_bytes(content))


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON object atomically; numbers that are not finite become null, because JSON has no NaN."""
    write_atomically(path, (json.dumps(_finite(values), indent=2, ensure_ascii=False) + "\n").encode())


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write a table atomically."""
    _replace(path, lambda temporary: pq.write_table(table, temporary, compression="zstd"))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; DataError names a file that is missing or corrupt."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{path}: missing") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not readable JSON ({error})") from error
    if not isinstance(values, dict):
        raise DataError(f"{path}: holds {type(values).__name__}, expected an object")
    return values


def read_parquet(path: Path) -> pa.Table:
    """Read a table; DataError names a file that is missing or corrupt."""
    try:
        # Not `read_table`, which would take a folder name like `task=gsm8k` for a partition column.
        return pq.ParquetFile(path).read()
    except FileNotFoundError as error:
        raise DataError(f"{path}: missing") from error
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: not a readable parquet file ({error})") from error


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with disk_errors(path):
        try:
            write(temporary)
            sync(temporary)
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)  # a half-written file would keep the disk full
            raise
        sync(path.parent)


def sync(path: Path) -> None:
    """Ask the disk to keep what was written to a file, or which names a folder holds."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return _finite(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
