"""A folder of results as frames, whether its runs are frozen or not."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from specbench.results.frozen import Frozen, freeze, load_frozen
from specbench.results.summary import run_folders
from specbench.types import DataError

_PARTS = ("runs.parquet", "cells.parquet", "reconstruction.parquet")


def is_frozen(folder: Path) -> bool:
    """Whether a folder holds frozen rows."""
    return any(next(folder.glob(pattern), None) for part in _PARTS for pattern in (part, f"*/{part}"))


def open_results(folder: str | Path) -> Frozen:
    """The frames of a frozen folder (`results/paper`) or of the finished runs below a folder (`results`).

    DataError where the folder holds neither.
    """
    folder = Path(folder)
    if is_frozen(folder):
        return load_frozen(folder)
    if not run_folders(folder):
        raise DataError(f"{folder}: neither frozen results nor runs; run an experiment first, or name another folder")
    with TemporaryDirectory() as temporary:
        freeze(folder, temporary)
        return load_frozen(temporary)
