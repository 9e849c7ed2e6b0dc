"""AR's answers from an earlier run, for `measure.baseline=stored`."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

from specbench.config import RunConfig, compose, run_folder
from specbench.recording import Answer, Turn
from specbench.results.files import read_json
from specbench.results.schema import BASELINE, METHOD
from specbench.results.store import is_finished
from specbench.results.summary import load_samples
from specbench.runner.resuming import PLACE, environments
from specbench.types import ConfigError, Generation, SampleError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredBaseline:
    """Rows of a finished AR run on the same prompts; `comparable`: made on this machine with these versions."""

    rows: dict[tuple[str, int, int], dict[Any, Any]]
    comparable: bool

    def answer(self, turn: Turn) -> Answer:
        """AR's answer to `turn`; SampleError when it is not there or the prompt was another one."""
        row = self.rows.get((turn.sample.id, turn.number, turn.repeat))
        if row is None or row["tokens"] is None:
            raise SampleError(f"the stored AR run has no answer to turn {turn.number} of sample {turn.sample.id}")
        if row["prompt_sha256"] != turn.sha256:
            raise SampleError(f"the stored AR run saw another prompt for sample {turn.sample.id}")
        generation = Generation(
            tokens=tuple(int(token) for token in row["tokens"]),
            finish_reason=row["finish_reason"],
            prefill_s=row["prefill_s"],
            decode_s=row["decode_s"],
            ttft_s=row["ttft_s"],
        )
        return Answer(
            turn,
            BASELINE,
            timed=bool(row["timed"]) and self.comparable,
            generation=generation,
            text=row["text"],
            finish_reason=row["finish_reason"],
            peak_memory_bytes=int(row["peak_memory_bytes"]),
            started_at=row["started_at"],
        )


def stored_baseline(config: RunConfig, environment: dict[str, Any]) -> StoredBaseline:
    """The finished `method=ar` run that differs from `config` in the method only; ConfigError says how to make it."""
    folder = run_folder(ar_config(config))
    if not is_finished(folder):
        raise ConfigError(f"measure.baseline=stored: no finished AR run at {folder}; {_how_to_make(config)}")
    samples = load_samples(folder)
    rows = samples[(samples["arm"] == METHOD) & samples["used"]].to_dict("records")
    then = read_json(folder / "environment.json")
    same = (*PLACE, "target")  # tokens may be compared anyway
    differing = [key for key in same if any(part.get(key) != environment.get(key) for part in environments(then))]
    if config.measure.acceptance == "replay" and "target" in differing:
        raise ConfigError(
            f"{folder}: these answers are of {then.get('target')}, not of {environment.get('target')}; remove the "
            "folder, and they are decoded again"
        )
    if differing:
        log.warning("the stored AR run was made with another %s: no speedup is given", ", ".join(differing))
    known = {(str(row["sample_id"]), int(row["turn"]), int(row["repeat"])): row for row in rows}
    return StoredBaseline(known, not differing)


def missing_baseline(config: RunConfig) -> RunConfig | None:
    """The config of the AR run that `config` takes its answers from, where that run is not finished yet."""
    wanted = ar_config(config)
    return None if is_finished(run_folder(wanted)) else wanted


def ar_config(config: RunConfig) -> RunConfig:
    """The AR run with the answers to compare with; replays of all drafts of one target share it."""
    measure = replace(config.measure, baseline="none", acceptance="decode")
    model = config.model
    if config.measure.acceptance == "replay":
        model = replace(model, draft=None, draft_revision=None, draft_vocab="own")
    return replace(config, method=compose(["method=ar"]).method, measure=measure, model=model)


def _how_to_make(config: RunConfig) -> str:
    if config.measure.acceptance == "replay":
        return "artefact.if_missing=build decodes the answers first"
    return "make it with the same command and method=ar measure.baseline=none"
