"""Weights & Biases: a mirror of the run's files, complete offline, and never the truth."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import wandb

from specbench.analysis.skipping import expanded
from specbench.config import RunConfig, as_dict, flatten
from specbench.loggers.base import Row
from specbench.loggers.running import Running
from specbench.results.schema import METHOD
from specbench.results.store import FINISHED
from specbench.results.summary import load_choices, load_samples, load_steps
from specbench.types import ConfigError

_LOGIN_SECONDS = 60
_TAG_LENGTH = 64  # the service refuses longer ones
_LEFT_OUT = ("tokens",)  # ids stay in samples.parquet
_CHOICE_COLUMNS = (
    "sublayers",
    "num_attention_skipped",
    "num_mlp_skipped",
    "predicted_acceptance",
    "measured_acceptance",
    "predicted_tokens_per_second",
    "search_s",
    "reason",
)


def check_login() -> None:
    """Raise ConfigError when online logging has no key to log in with."""
    if not wandb.login(prompt=False, verify=False):
        raise ConfigError(
            "logger.mode=online: W&B has no key here; run `wandb login` or set WANDB_API_KEY, "
            "or use logger.mode=offline and `wandb sync` later"
        )


class WandbLogger:
    """One W&B run a run: config, live rates, summary, tables of samples and choices, step histograms."""

    def __init__(self) -> None:
        self._run: Any = None
        self._running = Running()
        self._done = 0
        self._status = "interrupted"

    def start(self, run: RunConfig, run_id: str, num_samples: int, environment: Mapping[str, Any]) -> None:
        self._running, self._done, self._status = Running(), 0, "interrupted"
        Path(run.paths.results_dir).mkdir(parents=True, exist_ok=True)  # else W&B silently writes to a temporary folder
        self._run = wandb.init(
            project=run.logger.project,
            entity=run.logger.entity,
            id=run_id,
            name=run_id,
            group=run.logger.group,
            job_type=run.method.name,
            tags=_tags(run),
            config={**flatten(as_dict(run)), **flatten({"environment": environment})},
            dir=run.paths.results_dir,
            mode="online" if run.logger.mode == "online" else "offline",
            resume="allow" if run.logger.mode == "online" else None,
            reinit="finish_previous",
            settings=_quiet_settings(),
        )
        self._run.define_metric("*", step_metric="num_samples")

    def sample(self, samples: Sequence[Row], steps: Sequence[Row]) -> None:
        self._running.add(samples)
        self._done += 1
        self._run.log({"num_samples": self._done, **self._running.metrics()})

    def finish(self, summary: Mapping[str, Any], run_dir: Path, status: str) -> None:
        self._status = status
        self._run.log({"samples": wandb.Table(dataframe=_plain(load_samples(run_dir)))})
        choices = load_choices(run_dir)
        if len(choices):
            self._run.log({"choices": wandb.Table(dataframe=_shown(choices))})
        histograms = _histograms(load_steps(run_dir))
        if histograms:
            self._run.log(histograms)
        self._run.summary.update({**flatten(summary), "status": status, "run_dir": str(run_dir)})

    def close(self) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if self._status == FINISHED else 1)
            self._run = None


def _tags(run: RunConfig) -> list[str]:
    tags = [run.model.name, run.method.name, run.task.name, run.hardware.dtype, *run.logger.tags]
    return list(dict.fromkeys(tag[:_TAG_LENGTH] for tag in tags))


def _quiet_settings() -> wandb.Settings:
    # No samplers and no console capture: they would run beside what is being timed.
    return wandb.Settings(
        silent=True, console="off", x_disable_stats=True, save_code=False, init_timeout=_LOGIN_SECONDS
    )


def _plain(samples: pd.DataFrame) -> pd.DataFrame:
    """The samples without id lists and with None for what is missing, as a W&B table wants it."""
    frame = samples.drop(columns=[name for name in _LEFT_OUT if name in samples])
    return frame.astype(object).where(frame.notna(), None)


def _shown(choices: pd.DataFrame) -> pd.DataFrame:
    """Choices with their usual numbers as columns; all that a choice knows stays in `values` (JSON)."""
    frame = expanded(choices, _CHOICE_COLUMNS)
    return _plain(frame.assign(sublayers=frame["sublayers"].map(json.dumps)))


def _histograms(steps: pd.DataFrame) -> dict[str, Any]:
    """Accepted length, draft length and seconds of the method's steps; nothing for methods without steps."""
    own = steps[steps["arm"] == METHOD]
    seconds = own[["draft_s", "verify_s", "adapt_s", "host_s"]].sum(axis=1)
    lengths = {name: own[name].dropna().to_numpy(dtype=np.int64) for name in ("num_accepted", "num_draft_tokens")}
    found = {f"steps/{name}": _counted(values) for name, values in lengths.items() if values.size}
    if len(own):
        found["steps/seconds"] = wandb.Histogram(seconds.tolist())
    return found


def _counted(lengths: np.ndarray) -> wandb.Histogram:
    """A histogram with one bar a length, or fewer where W&B would refuse so many."""
    bars = min(int(lengths.max()) + 1, wandb.Histogram.MAX_LENGTH)
    return wandb.Histogram(np_histogram=np.histogram(lengths, bins=bars, range=(-0.5, lengths.max() + 0.5)))
