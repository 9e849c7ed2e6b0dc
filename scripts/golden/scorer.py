"""specbench_score/expected.json: the official scorer's figures for pairs of answer files and for several runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

from specbench.results.specbench_files import read_answers, score, score_runs

from .outcome import Data, Outcome, close, equal, judge

FOLDER = "specbench_score"
TOLERANCE = 1e-9  # relative


def check_scores(root: Path, data: Data) -> Iterator[Outcome]:
    """Every pair and task, and mean and deviation over runs."""
    folder = root / FOLDER
    for pair in data.get("pairs", []):
        yield judge(f"{pair['id']} rows", _rows, folder, pair)
        for task in pair["expected"]:
            yield judge(f"{pair['id']} {task}", _pair, folder, pair, task)
    runs = data.get("runs", {})
    for task in runs.get("expected_mean_std", {}):
        yield judge(f"runs {task}", _runs, folder, runs, task)


@functools.cache
def _counter(tokenizer_dir: Path) -> Callable[[str], int]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_dir)
    return functools.cache(lambda text: len(tokenizer(text).input_ids))


def _rows(folder: Path, pair: Data) -> Iterator[str]:
    for side in ("method", "baseline"):
        yield from equal(f"{side} rows", len(read_answers(folder / pair[side])), pair[f"{side}_rows"])


def _pair(folder: Path, pair: Data, task: str) -> Iterator[str]:
    ours = score(folder / pair["method"], folder / pair["baseline"], _counter(folder / pair["tokenizer"]), task)
    for name, golden in pair["expected"][task].items():
        yield from close(name, ours[name], golden, relative=TOLERANCE)


def _runs(folder: Path, runs: Data, task: str) -> Iterator[str]:
    pairs = [(folder / one["method"], folder / one["baseline"]) for one in runs["files"]]
    ours = score_runs(pairs, _counter(folder / runs["tokenizer"]), task)
    for name, golden in runs["expected_mean_std"][task].items():
        yield from close(name, ours[name], golden, relative=TOLERANCE)
