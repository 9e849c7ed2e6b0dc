"""Run folders with made-up answers, written through the project's own store: what figures are tested on.

Speeds and acceptances are invented; every row passes the schema and every summary is derived from the rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from specbench.analysis.metrics import summarise
from specbench.results.experiments import join_experiment
from specbench.results.schema import choice_row
from specbench.results.store import RunStore
from specbench.types import ChoiceRecord
from tests.results.folders import quick_intervals
from tests.results.rows import KEY_DEFAULTS, sample, step

AR_STEP = 0.010
LAYERS = 12
CURVE = [[1, AR_STEP], [2, 0.0102], [4, 0.0108], [8, 0.0125], [16, 0.017], [32, 0.027]]


@dataclass(frozen=True)
class MadeUp:
    """One run: how well it drafts (`alpha`), what a drafted token costs in AR steps, and how it is configured."""

    method: str
    task: str = "gsm8k"
    alpha: float = 0.7
    cost: float = 0.2
    length: int = 5
    controller: str = "fixed"
    samples: int = 12
    tokens: int = 64
    experiment: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the method
    accuracy: float | None = None
    context: int | None = None
    stops: bool = False  # a rule ends drafts, with a chance for every token
    searches: str | None = None  # knapspec | confl | swift: which search writes the choices
    status: str = "finished"
    model: Mapping[str, Any] = field(default_factory=dict)  # more of its keys
    sampling: Mapping[str, Any] = field(default_factory=dict)  # more of its keys
    timed: bool = True
    repeated: int | None = None  # the conversation that was measured twice, the second time in vain

    @property
    def run_id(self) -> str:
        said = "-".join(f"{key}{value}" for key, value in self.settings.items())
        more = [*self.model.values(), *self.sampling.values(), *([] if self.timed else ["untimed"])]
        parts = (self.method, self.controller, self.task, self.context or "", said, self.experiment or "", *more)
        return "-".join(str(part) for part in ("tiny", *parts) if part)

    def config(self) -> dict[str, Any]:
        method = {"name": self.method, "controller": {"name": self.controller}, **self.settings}
        task = {"name": self.task, "context_tokens": self.context}
        return {
            "model": {"name": "tiny", **self.model},
            "sampling": {"max_new_tokens": self.tokens, **self.sampling},
            "method": method,
            "task": task,
            "hardware": {"dtype": "float32", "device": "cpu"},
            "experiment_name": self.experiment,
        }


def write(run: MadeUp, results: Path, *, seed: int = 0, also_of: Sequence[str] = ()) -> Path:
    """The finished run folder of `run` below `results`."""
    folder = results / "runs" / run.run_id
    draws = np.random.default_rng([seed, *run.run_id.encode()])
    with RunStore(folder) as store:
        store.write_config(yaml.safe_dump(run.config()))
        store.write_environment({"git": {"commit": "c0ffee", "dirty": False}, "num_threads": 2})
        if run.searches == "knapspec":
            store.write_latency(latency_record())
        for number in range(run.samples):
            store.append(f"s{number}", *_conversation(run, number, draws))
        frames = store.frames()
        choices = frames.choices if run.searches else None
        with quick_intervals():
            own = summarise(frames.samples, frames.steps, choices, dtype="float32")
        store.finalize({**own, "t_curve": CURVE}, status=run.status)
    for experiment in also_of:
        join_experiment(folder, experiment)
    return folder


def _conversation(run: MadeUp, number: int, draws: np.random.Generator) -> tuple[list, list, list]:
    steps, left, context = [], run.tokens, run.context or 40
    while left > 0:
        steps.append(_step(run, number, len(steps), min(left, 1000), context, draws))
        left -= steps[-1]["num_emitted"]
        context += steps[-1]["num_emitted"]
    phases = {name: sum(row[name] for row in steps) for name in ("draft_s", "verify_s", "adapt_s", "host_s")}
    counts = ("num_draft_tokens", "num_tree_tokens", "num_accepted", "num_accepted_spine")
    same = {"num_tokens": run.tokens, "tokens": list(range(run.tokens)), "prefill_s": 0.05, "ttft_s": 0.06, "text": ""}
    own = sample(
        f"s{number}",
        **same,
        **phases,
        decode_s=sum(phases.values()),
        num_steps=len(steps),
        **{name: sum(row[name] for row in steps) for name in counts},
        started_at=100.0 + number,
        exact_match=True,
        scores=_score(run, draws),
    )
    ar_s = run.tokens * AR_STEP * draws.normal(1.0, 0.02)
    ar = {"decode_s": ar_s, "started_at": 100.5 + number, "scores": _score(run, draws)}
    baseline = sample(f"s{number}", arm="baseline", **{**same, **ar})
    own, baseline = ({**row, "timed": run.timed} for row in (own, baseline))
    choices = _choices(run, number, steps)
    if number == run.repeated:
        again = {"attempt": 1, "used": False, "started_at": 200.0 + number}
        samples = [own, baseline, own | again, baseline | again]
        return samples, _again(steps), [*choices, *(_odd(row) for row in _again(choices)[len(choices) :])]
    return [own, baseline], steps, choices


def _again(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows and those of a second attempt, which does not count."""
    return rows + [row | {"attempt": 1} for row in rows]


def _odd(row: dict[str, Any]) -> dict[str, Any]:
    """A choice that left out nothing: whoever counts it shows it."""
    values = json.loads(row["values"]) | {"num_attention_skipped": 0, "num_mlp_skipped": 0, "lambda": -1.0}
    return row | {"values": json.dumps(values)}


def _score(run: MadeUp, draws: np.random.Generator) -> str | None:
    return None if run.accuracy is None else f'{{"accuracy": {float(draws.random() < run.accuracy)}}}'


def _step(run: MadeUp, number: int, index: int, left: int, context: int, draws: np.random.Generator) -> dict[str, Any]:
    room = 0 if run.method == "ar" or (run.searches and index == 0) else min(left - 1, run.length)
    chances, right = [], []
    for _ in range(room):
        chance = float(np.clip(draws.normal(run.alpha, 0.2), 0.02, 0.98))
        chances.append(chance)
        right.append(bool(draws.random() < chance))
        if run.stops and chance < 0.55:
            break
    drafted = len(chances)
    accepted = right.index(False) if False in right else drafted
    emitted = min(accepted + 1, left)
    reason = "budget" if drafted == left - 1 else "rule" if drafted < run.length else "cap"
    return step(
        f"s{number}",
        index,
        context_length=context,
        num_draft_tokens=drafted,
        num_tree_tokens=drafted,
        num_accepted=accepted,
        num_accepted_spine=accepted,
        num_emitted=emitted,
        draft_s=drafted * run.cost * AR_STEP,
        verify_s=AR_STEP * (1 + 0.03 * drafted) * float(draws.normal(1, 0.03)),
        adapt_s=0.002 if run.searches else 0.0,
        host_s=0.0002,
        stop_reason=reason,
        info={"conditional_chances": chances} if run.stops else {},
        block_lengths=(1,) * drafted,
    )


# ---- searches


def _choices(run: MadeUp, number: int, steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if run.searches is None:
        return []
    key = {"sample_id": f"s{number}", **KEY_DEFAULTS}
    first = [] if run.searches == "knapspec" else [(0, _standing(number))]
    found = first + [(at, values) for at, values in _searched(run, number, steps) if at < len(steps) - 1]
    records = [ChoiceRecord(at, steps[at]["context_length"], "skip_set", values) for at, values in found]
    return [choice_row(key, record) for record in records]


def _set(sublayers: Sequence[int], **values: Any) -> dict[str, Any]:
    mlp = sum(index % 2 for index in sublayers)
    used = {"sublayers": list(sublayers), "num_attention_skipped": len(sublayers) - mlp, "num_mlp_skipped": mlp}
    return {**used, **values}


def _standing(number: int) -> dict[str, Any]:
    return _set([2, 3, 6, 7, 10, 11], reason="carried_over" if number else "initial")


def _searched(run: MadeUp, number: int, steps: list[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Choices at steps of one conversation; knapspec's favour attention at long contexts."""
    if run.searches == "knapspec":
        rate = 90 + 10 * run.alpha
        return [(at, _knapspec(steps[at]["context_length"], at, rate)) for at in (4, 12) if at < len(steps)]
    last = 2 if run.searches == "swift" else 0
    if number > last:
        return []
    why = {"reason": "better", "active": number < last}
    return [(3, _set([4 + number, 8, 9, 15], **why, **(_confidences() if run.searches == "confl" else {})))]


def _knapspec(context: int, at: int, rate: float) -> dict[str, Any]:
    attention, mlp = min(8, 2 + context // 60), max(1, 6 - context // 80)
    sublayers = [*range(2, 2 + 2 * attention, 2), *range(5, 5 + 2 * mlp, 2)]
    return _set(sublayers, reason="search", predicted_tokens_per_second=rate + at / 4, plain_tokens_per_second=80.0)


def _confidences() -> dict[str, Any]:
    z = np.round(np.sin(np.arange(LAYERS - 2)) + np.linspace(-0.5, 0.5, LAYERS - 2), 3)
    thresholds = np.convolve(z, [0.5, 0, 0.5], "same")
    return {
        "z": z.tolist(),
        "thresholds": thresholds.tolist(),
        "windows": [2 + layer // 3 for layer in range(LAYERS - 2)],
        "selected_layers": [int(layer) + 1 for layer in np.flatnonzero(z < thresholds)],
        "lambda": 0.1,
    }


def latency_record() -> dict[str, Any]:
    """A profile as the runner stores it beside a run."""
    model = {"attention_slope": 2e-7, "attention_base": 1e-4, "mlp": 3e-4, "head": 2e-3, "fixed": 1e-3, "noisy": False}
    passes = []
    kinds = [(n, LAYERS, LAYERS, True) for n in (128, 512, 1024, 2048)]
    for context, attention, mlp, head in [*kinds, (128, 6, LAYERS, True), (2048, 6, LAYERS, True), (128, 0, 0, False)]:
        attention_s = 2e-7 * context + 1e-4
        fitted = 1e-3 + 2e-3 * head + attention * attention_s + mlp * 3e-4
        timed = {"seconds": fitted * (1.02 if context == 512 else 0.99), "fitted_s": fitted}
        kind = {"context": context, "attention": attention, "mlp": mlp, "head": head}
        passes.append({**kind, **timed, "attention_s": attention_s, "mlp_s": 3e-4})
    key = {"model": "local-tiny", "dtype": "float32", "device": "cpu", "threads": 2, "cpu": "a CPU"}
    return {"profile": "p0", "key": key, "model": model, "passes": passes}
