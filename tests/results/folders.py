"""Folders of finished runs with known numbers, made from rows and not by decoding: for tables, pages and notebooks."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import yaml

from specbench.analysis import stats
from specbench.analysis.metrics import summarise
from specbench.results.store import RunStore
from tests.results.rows import choice, sample, step

MODEL = "SmolLM2-135M-Instruct (from Q4_1)"
ENVIRONMENT = {
    "python": "3.11.7",
    "versions": {"torch": "2.13.0", "transformers": "5.24.0"},
    "git": {"commit": "0123456789abcdef", "dirty": False},
    "cpu": {"model": "test CPU"},
    "num_threads": 2,
    "device": "cpu",
}
AR_TOKEN_S = 0.05
CURVE = [[1, 0.05], [2, 0.055], [4, 0.06], [8, 0.07], [16, 0.1]]
_BASELINE = {"turn": 0, "arm": "baseline", "attempt": 0, "repeat": 0}


@dataclass(frozen=True)
class Spec:
    """One run: `speedup` holds for every conversation but for noise of `spread`; `drafted` 0 = AR."""

    name: str
    method: str = "sps"
    controller: str = "fixed"
    task: str = "gsm8k"
    experiment: str = "specbench_leaderboard"
    conversations: int = 8
    speedup: float = 1.2
    spread: float = 0.01
    drafted: int = 4
    acceptance: float = 0.6
    config: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    categories: Sequence[str] = ("",)
    sublayers: Sequence[int] | None = None


@contextmanager
def quick_intervals() -> Iterator[None]:
    """Bootstraps of 299 draws, which are enough for tests."""
    with patch.object(stats, "RESAMPLES", 299):
        yield


_MADE = TemporaryDirectory(prefix="made-up-runs-")  # one folder a Spec: tests ask for the same runs again and again


def write_run(root: Path, spec: Spec) -> Path:
    """Write the finished run `spec` below root/runs."""
    made = Path(_MADE.name, hashlib.sha256(repr(spec).encode()).hexdigest())
    if not made.exists():
        _write_run(made, spec)
    return shutil.copytree(made / "runs" / spec.name, root / "runs" / spec.name)


def _write_run(root: Path, spec: Spec) -> None:
    generator = np.random.default_rng(len(spec.name) + 31 * spec.drafted)
    with RunStore(root / "runs" / spec.name) as store:
        store.write_config(yaml.safe_dump(_config(spec)))
        store.write_environment({**ENVIRONMENT, **spec.environment})
        for number in range(spec.conversations):
            _conversation(store, spec, number, generator)
        frames = store.frames()
        with quick_intervals():
            numbers = summarise(frames.samples, frames.steps, frames.choices if spec.sublayers else None)
        bound = spec.controller == "block_oracle"
        known = {"model_name": MODEL, "dtype": "bfloat16", "t_curve": CURVE, "bound": bound}
        store.finalize({**numbers, **known}, status="finished")


def _config(spec: Spec) -> dict[str, Any]:
    settings = spec.config | {"name": spec.method}
    controller = {"name": spec.controller, **settings.pop("controller", {})}
    return {
        "model": {"name": "smollm2", "target": "embedded:smollm2"},
        "method": {**settings, "controller": controller},
        "task": {"name": spec.task, "context_tokens": 1024},
        "data": {"source": "local", "dir": None},
        "sampling": {"temperature": 0.0, "max_new_tokens": 96, **spec.sampling},
        "hardware": {"name": "auto", "dtype": "bfloat16", "device": "cpu", "num_threads": 2},
        "experiment_name": spec.experiment,
        "num_samples": spec.conversations,
    }


def _conversation(store: RunStore, spec: Spec, number: int, generator: np.random.Generator) -> None:
    name = f"q{number}"
    accepted = generator.binomial(spec.drafted, spec.acceptance, size=20)
    emitted = accepted + 1
    tokens = int(emitted.sum())
    seconds = AR_TOKEN_S * tokens / (spec.speedup * (1 + spec.spread * generator.standard_normal()))
    each = {"draft_s": 0.3 * seconds / 20, "verify_s": 0.6 * seconds / 20, "host_s": 0.1 * seconds / 20}
    steps = [_step(spec, name, place, int(count), each) for place, count in enumerate(accepted)]
    shared = {"num_tokens": tokens, "tokens": list(range(tokens)), "category": spec.categories[number % 2 - 1]}
    shared |= {"load_before": 0.5, "load_after": 0.5, "started_at": 100.0 + number}
    own = _totals(spec, accepted, seconds) | {"exact_match": True, "repetition_rate": 0.0}
    rows = [sample(name, **shared, **own)]
    if spec.method != "ar":
        rows.append(sample(name, arm="baseline", **shared, decode_s=AR_TOKEN_S * tokens, repetition_rate=0.0))
        steps.append(step(name, key=_BASELINE, num_draft_tokens=0, num_tree_tokens=0, num_accepted=0, num_emitted=1))
    store.append(name, rows, steps, _choices(spec, name))


def _totals(spec: Spec, accepted: np.ndarray, seconds: float) -> dict[str, Any]:
    total = int(accepted.sum())
    phases = {"draft_s": 0.3 * seconds, "verify_s": 0.6 * seconds, "adapt_s": 0.0, "host_s": 0.1 * seconds}
    drafted = spec.drafted * len(accepted)
    counts = {"num_steps": len(accepted), "num_draft_tokens": drafted, "num_tree_tokens": drafted}
    return {"decode_s": seconds, **phases, **counts, "num_accepted": total, "num_accepted_spine": total}


def _step(spec: Spec, name: str, place: int, accepted: int, each: dict[str, float]) -> dict[str, Any]:
    counts = {"num_draft_tokens": spec.drafted, "num_tree_tokens": spec.drafted, "num_emitted": accepted + 1}
    reason = {"stop_reason": "cap" if spec.drafted else None}
    both = {"num_accepted": accepted, "num_accepted_spine": accepted}
    return step(name, place, context_length=7 + 3 * place, **counts, **both, **each, **reason)


def _choices(spec: Spec, name: str) -> list[dict[str, Any]]:
    if spec.sublayers is None:
        return []
    mlp = sum(index % 2 for index in spec.sublayers)
    values = {"sublayers": list(spec.sublayers), "num_attention_skipped": len(spec.sublayers) - mlp}
    return [choice(name, **values, num_mlp_skipped=mlp, reason="search", active=False, search_s=0.1)]


def paper(root: Path) -> Path:
    """A folder with every kind of run that tables know; KnapSpec is slower than AR here, SpS faster."""
    for spec in _specs():
        write_run(root, spec)
    return root


def _specs() -> list[Spec]:
    found = []
    for task in ("gsm8k", "cnn_dm"):
        found += [
            Spec(f"ar-{task}", "ar", "none", task, speedup=1.0, drafted=0),
            Spec(f"hf-{task}", "pld", "none", task, speedup=1.05, conversations=4),
            Spec(f"sps-{task}", "sps", "fixed", task, speedup=1.3),
            Spec(f"pacer-{task}", "pacer", "pacer", task, "pacer_main", speedup=1.5, acceptance=0.8),
            Spec(f"swift-{task}", "swift", "confidence", task, "confl_main", speedup=0.8, sublayers=(2, 5, 8)),
            Spec(f"confl-{task}", "confl", "confidence", task, "confl_main", speedup=0.7, sublayers=(2, 3, 8, 9)),
            Spec(f"knap-{task}", "knapspec", "confidence", task, "knapspec_main", speedup=0.9, sublayers=(4, 5)),
        ]
    whole = ("writing", "translation")
    found.append(Spec("board", "pld", "none", "spec_bench", conversations=16, speedup=1.1, categories=whole))
    for size, speedup in ((2, 1.2), (3, 1.45), (8, 1.1)):
        keys = {"controller": {"block_size": size, "threshold": 0.7}}
        found.append(
            Spec(f"block-{size}", "pacer", "pacer", experiment="pacer_block_size", speedup=speedup, config=keys)
        )
    return found
