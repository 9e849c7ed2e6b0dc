"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def pytest_collection_finish() -> None:
    """What is loaded now stays: looking through it at every collection took a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


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


@pytest.fixture(scope="module")
def few_draws() -> Iterator[None]:
    """Intervals from few draws, for tests that are about something else."""
    from tests.results.folders import quick_intervals  # only now: most tests do without pandas

    with quick_intervals():
        yield


@pytest.fixture(scope="session")
def repo_root() -> Path:
    return ROOT
