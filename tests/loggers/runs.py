"""A small finished run folder for logger tests, made through the project's own store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from specbench.analysis.metrics import summarise
from specbench.config import RunConfig, as_dict, run_id
from specbench.results.store import RunStore
from tests.results.rows import choice, sample, step

STEP = {"num_draft_tokens": 16, "num_accepted_spine": 8, "num_accepted": 8, "num_tree_tokens": 16, "num_steps": 4}
CHOSEN = {
    "sublayers": [2, 4, 5],
    "num_attention_skipped": 2,
    "num_mlp_skipped": 1,
    "predicted_acceptance": 0.75,
    "matchness": 0.75,
    "search_s": 0.5,
    "reason": "better",
    "active": False,
}
CURVE = [[1, 0.02], [8, 0.03]]


def conversation(sample_id: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of one conversation: the method's, AR's, and the method's steps."""
    phases = {"draft_s": 0.1, "verify_s": 0.8, "adapt_s": 0.0, "host_s": 0.1}
    own = sample(sample_id, **STEP, **phases, text="an answer", exact_match=True)
    baseline = sample(sample_id, arm="baseline", decode_s=2.0, text="an answer")
    return [own, baseline], [step(sample_id, index) for index in range(4)]


def repeated(sample_id: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """An attempt that does not count: its rows, a step of 30 drafted tokens and a choice."""
    key = {"turn": 0, "arm": "method", "attempt": 1, "repeat": 0}
    rows = [sample(sample_id, **key | {"arm": arm}, used=False) for arm in ("method", "baseline")]
    long = step(sample_id, key=key, num_draft_tokens=30, num_tree_tokens=30, num_accepted=30, num_accepted_spine=30)
    return rows, [long], [choice(sample_id, **CHOSEN) | key]


def write_run(config: RunConfig, count: int = 2) -> tuple[Path, dict[str, Any]]:
    """The folder and the summary of a finished run of `count` conversations, the last of them measured twice."""
    folder = Path(config.paths.results_dir) / "runs" / run_id(config)
    with RunStore(folder) as store:
        store.write_config(yaml.safe_dump(as_dict(config)))
        store.write_environment({"versions": {"torch": "2"}})
        for number in range(count):
            again = repeated(f"s{number}") if number == count - 1 else ([], [], [])
            parts = (*conversation(f"s{number}"), [choice(f"s{number}", **CHOSEN)])
            store.append(f"s{number}", *(own + more for own, more in zip(parts, again, strict=True)))
        frames = store.frames()
        summary = summarise(frames.samples, frames.steps, frames.choices) | {"t_curve": CURVE}
        store.finalize(summary, status="finished")
    return folder, summary
