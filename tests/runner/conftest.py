"""Tiny runs for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from specbench.runner import conversation
from specbench.runner.session import Session
from tests.runner.runs import Change, Measure, TinyRun, measured, tiny_config


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    """The cache folder of all runs: the pair and the latency curve are made once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_locks(tmp_path_factory, monkeypatch):
    """Other runs on this machine neither wait for a test nor hold it up."""
    monkeypatch.setenv("SPECBENCH_LOCK_DIR", str(tmp_path_factory.getbasetemp() / "locks"))


@pytest.fixture
def calm(monkeypatch):
    """A machine whose speed never drifts, so that no pair is measured again, and whose load is known at once."""
    monkeypatch.setattr(Session, "probe", lambda self: 1.0)
    monkeypatch.setattr(conversation, "load_now", lambda: 0.0)


@pytest.fixture
def measure(tmp_path, cache, calm) -> Measure:
    """Run the tiny pair with some words; `change` edits the composed config."""

    def start(*words: str, change: Change = lambda config: config) -> TinyRun:
        return measured(change(tiny_config(words, tmp_path / "results", cache)))

    return start
