"""Runs of the tiny pair inside the test process, through the public entry: compose, then run."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import yaml
from safetensors.torch import load_file, save_file

from specbench.config import RunConfig, run_id
from specbench.models.tiny import prepare_tiny
from specbench.results.files import read_json
from specbench.results.summary import load_samples, load_steps
from specbench.runner import run
from specbench.types import SampleError
from tests.composed import composed

WORDS = (
    "model=tiny",
    "hardware.device=cpu",
    "hardware.dtype=float32",
    "hardware.num_threads=1",
    "measure.warmup=0",
    "task=gsm8k",
    "method=ar",
    "num_samples=2",
    "sampling.max_new_tokens=8",
)
QUIET = (*WORDS, "logger=none")
QUESTIONS = ("Ann has 3 pears and eats 1.", "Bob reads 12 pages a day.", "Cid walks 5 miles.", "Dee has 9 hens.")


@dataclass(frozen=True)
class TinyRun:
    """What a run left: its folder, its objective, and the failure that it ended with."""

    run_dir: Path
    objective: float | None
    error: str | None

    @functools.cached_property
    def samples(self) -> pd.DataFrame:
        return load_samples(self.run_dir)

    @functools.cached_property
    def steps(self) -> pd.DataFrame:
        return load_steps(self.run_dir)

    @property
    def summary(self) -> dict[str, Any]:
        return read_json(self.run_dir / "summary.json")

    @property
    def status(self) -> dict[str, Any]:
        return read_json(self.run_dir / "status.json")

    def rows(self, arm: str = "method") -> pd.DataFrame:
        """The used rows of one arm, in the order they were decoded."""
        return self.samples[self.samples["used"] & (self.samples["arm"] == arm)]


Change = Callable[[RunConfig], RunConfig]
Measure = Callable[..., TinyRun]


def measured(config: RunConfig) -> TinyRun:
    """Run `config`; a SampleError, which comes after everything was stored, is kept as `error`."""
    folder = Path(config.paths.results_dir) / "runs" / run_id(config)
    try:
        return TinyRun(folder, run(config), None)
    except SampleError as error:
        return TinyRun(folder, None, str(error))


def tiny_config(words: Iterable[str], results: Path, cache: Path) -> RunConfig:
    """The config of a quiet tiny run with the given words added; later words win."""
    given = [*QUIET, f"paths.results_dir={results}", f"paths.cache_dir={cache}", *words]
    composed = [word for word in given if "." not in word.partition("=")[0] or word.startswith("data.")]
    config = _composed(tuple(composed))
    for word in given:
        if word not in composed:
            key, _, value = word.partition("=")
            config = _changed(config, key.split("."), yaml.safe_load(value))
    return config


@functools.cache
def _composed(words: tuple[str, ...]) -> RunConfig:
    """Composing takes longer than such a run, so it is done once for each set of choices."""
    return composed(*words)


def _changed(part: Any, key: Sequence[str], value: Any) -> Any:
    return replace(part, **{key[0]: _changed(getattr(part, key[0]), key[1:], value) if len(key) > 1 else value})


def with_method(name: str) -> Change:
    """Put a method of tests.runner.odd_methods in the place of the config's own."""
    return lambda config: replace(config, method=replace(config.method, _target_=f"tests.runner.odd_methods.{name}"))


def local_questions(folder: Path, questions: Sequence[str] = QUESTIONS) -> list[str]:
    """Words for a gsm8k set of these questions, written to a file."""
    file = folder / "gsm8k" / "test.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.dumps({"question": question, "answer": "#### 2"}) + "\n" for question in questions]
    file.write_text("".join(rows), encoding="utf-8")
    return ["data=local", f"data.dir={folder}", "num_samples=null"]


def broken_model(folder: Path, cache: Path, letters: str | None) -> list[str]:
    """Words for a copy of the tiny target whose embedding of `letters` (None: of everything) is NaN."""
    shutil.copytree(prepare_tiny(cache)[0], folder)
    file = folder / "model.safetensors"
    weights = load_file(file)
    rows = slice(None) if letters is None else token_ids(folder, letters)
    weights["model.embed_tokens.weight"][rows] = torch.nan
    save_file(weights, file, metadata={"format": "pt"})
    return [f"model.target={folder}", "model.draft=null"]


def edited_json(file: Path, **changes: Any) -> None:
    """Set keys of a JSON file; a key given as None is removed."""
    values = {**json.loads(file.read_text(encoding="utf-8")), **changes}
    kept = {key: value for key, value in values.items() if value is not None}
    file.write_text(json.dumps(kept), encoding="utf-8")


def token_ids(folder: Path, text: str) -> list[int]:
    """Ids of the letters of `text` in the tokenizer of a tiny folder."""
    vocabulary = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    return [vocabulary[letter] for letter in text]
