"""Frozen results with made-up numbers, one set for all tests of figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from specbench.results.frozen import Frozen, freeze, load_frozen
from specbench.results.schema import DERIVED, to_frame
from tests.figures.made_up import LAYERS, MadeUp, write

RUNS = (
    *(MadeUp("ar", task, tokens=24) for task in ("gsm8k", "humaneval")),
    *(MadeUp("sps", task, 0.75, accuracy=0.5) for task in ("gsm8k", "humaneval")),
    MadeUp("pacer", "gsm8k", 0.75, length=12, controller="pacer", stops=True, accuracy=0.5),
    MadeUp("pld", "gsm8k", 0.4, 0.01, samples=4, accuracy=0.4),  # too few for an interval
    MadeUp("knapspec", "gsm8k", 0.85, 0.5, searches="knapspec", tokens=200, samples=8),
    MadeUp("confl", "gsm8k", 0.8, 0.5, searches="confl", samples=8),
    MadeUp("swift", "gsm8k", 0.8, 0.5, searches="swift", samples=8),
    *(
        MadeUp("confl", "gsm8k", 0.6 + lam, 0.5, experiment="confl_lambda", settings={"lam": lam})
        for lam in (0.0, 0.1, 0.2)
    ),
)


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with the run folders of RUNS."""
    folder = tmp_path_factory.mktemp("results")
    for run in RUNS:
        write(run, folder)
    return folder


@pytest.fixture(scope="session")
def paper(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, frozen."""
    folder = tmp_path_factory.mktemp("paper")
    freeze(results, folder)
    return folder


@pytest.fixture(scope="session")
def frozen(paper: Path) -> Frozen:
    return replace(load_frozen(paper), cells=cells(), reconstruction=reconstruction())


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Frozen:
    """A folder without any results."""
    return load_frozen(tmp_path_factory.mktemp("empty"))


def _arm(variant: str, task: str) -> dict[str, Any]:
    tuned = '{"train_params": "qkv"}' if variant in ("kv", "functional") else "{}"
    arm = {"pair": "big <- small", "converter": "transmla", "budget": 0.5, "options": "{}", "tuning": tuned}
    return {"run_id": f"mla-{variant}-{task}", "variant": variant, **arm}


def cells() -> pd.DataFrame:
    """Three tasks, in one of which reconstruction helps, in one hurts, and one where it does nothing."""
    draws, rows = np.random.default_rng(0), []
    rates = {"gsm8k": (0.5, 0.6), "humaneval": (0.6, 0.5), "cnn_dm": (0.55, 0.551)}
    for task, (before, after) in rates.items():
        for number in range(24):
            base = draws.normal(0, 4)
            for variant, rate in (("none", before), ("kv", (before + after) / 2), ("functional", after)):
                rows.append(
                    {
                        **_arm(variant, task),
                        "task": task,
                        "setting": "float32",
                        "acceptance": "replay",
                        "sample_id": f"s{number}",
                        "prompt_sha256": f"h{number}",
                        "accepted": int(rate * 200 + base),
                        "proposed": 200,
                        "emitted": 100,
                        "steps": 50,
                    }
                )
    return _frame("cells", rows)


def reconstruction() -> pd.DataFrame:
    layers = [
        {
            **_arm("functional", "gsm8k"),
            "layer": layer,
            "error_before": 0.02 * layer + 0.01,
            "error_after": 0.004,
            "seconds": 3.0,
        }
        for layer in range(LAYERS)
    ]
    return _frame("reconstruction", layers)


def _frame(name: str, rows: list[dict[str, Any]]) -> pd.DataFrame:
    return to_frame(pa.Table.from_pylist(rows, schema=DERIVED[name]))
