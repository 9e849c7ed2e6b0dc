"""The command, run on the tiny pair in folders of the test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.command import Command, Done
from tests.runner.runs import WORDS

Start = Callable[..., Command]
Run = Callable[..., Done]


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    """The cache folder of all commands: the pair and the latency curve are made once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def environment(tmp_path_factory) -> dict[str, str]:
    """Own locks, no network, no account, one thread."""
    locks = tmp_path_factory.mktemp("locks")
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "WANDB_BASE_URL": "http://127.0.0.1:9"}
    return {"SPECBENCH_LOCK_DIR": str(locks), "OMP_NUM_THREADS": "1", "NETRC": os.devnull, **offline}


@pytest.fixture
def results(tmp_path) -> Path:
    return tmp_path / "results"


@pytest.fixture
def tiny_words(results, cache) -> list[str]:
    return [*WORDS, f"paths.results_dir={results}", f"paths.cache_dir={cache}"]


@pytest.fixture
def start_bare(tmp_path, environment) -> Iterator[Start]:
    """Start the command with these words; what still runs at the end is killed."""
    started: list[Command] = []
    numbers = itertools.count()

    def begin(*words: str, file_bytes: int = 0) -> Command:
        folder = tmp_path / f"command-{next(numbers)}"
        started.append(Command([*words], folder, environment=environment, file_bytes=file_bytes))
        return started[-1]

    yield begin
    for command in started:
        if command.running:
            command.kill()


@pytest.fixture
def start(start_bare, tiny_words) -> Start:
    """Start the command on the tiny pair with more words."""
    return lambda *words, **options: start_bare(*tiny_words, *words, **options)


@pytest.fixture
def experiment(start_bare, results, cache) -> Run:
    """Run an experiment to its end: it says what is run, the words added here only where."""
    where = ["hardware.device=cpu", "hardware.num_threads=1"]
    where += [f"paths.results_dir={results}", f"paths.cache_dir={cache}"]
    return lambda *words: start_bare(*where, *words).wait()


@pytest.fixture
def run(start) -> Run:
    """Run the command on the tiny pair to its end."""
    return lambda *words, **options: start(*words, **options).wait()
