"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def shared_data_dir() -> Path | None:
    """The folder of benchmark files and golden data, or None where this machine has none."""
    folder = Path(os.environ.get("SPECBENCH_SHARED_DATA", ROOT.parent / "shared" / "data"))
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def shared_data() -> Path:
    folder = shared_data_dir()
    if folder is None:
        pytest.skip("shared data not found: set SPECBENCH_SHARED_DATA to its folder")
    return folder


@pytest.fixture(scope="session")
def repo_root() -> Path:
    return ROOT
