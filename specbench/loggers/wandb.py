"""Weights & Biases: a mirror of the run's files, complete offline, and never the truth."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import wandb
from PIL import Image

from specbench.analysis.acceptance import with_spine
from specbench.analysis.rows import own_steps
from specbench.analysis.skipping import expanded
from specbench.config import RunConfig, as_dict, flatten
from specbench.loggers import charts
from specbench.loggers.base import Row
from specbench.loggers.running import Running
from specbench.results.files import read_json
from specbench.results.store import FINISHED
from specbench.results.summary import load_choices, load_config, load_samples, load_steps
from specbench.types import ConfigError, DataError, SpecbenchError

_LOGIN_SECONDS = 60
_DPI = 200
_TAG_LENGTH = 64  # the service refuses longer ones
_LEFT_OUT = ("tokens",)  # ids stay in samples.parquet
_FILES = ("*.yaml", "*.json", "*.parquet")  # of a run folder: complete and never written again
_LIVE = ("tokens_per_second", "acceptance_rate", "mat", "walltime_speedup")
_CHOICE_COLUMNS = ("sublayers", *charts.LAYER_COLUMNS, "reason")


def check_login() -> None:
    """Raise ConfigError when online logging has no key to log in with."""
    if not wandb.login(prompt=False, verify=False):
        raise ConfigError(
            "logger.mode=online: W&B has no key here; run `wandb login` or set WANDB_API_KEY, "
            "or use logger.mode=offline and `wandb sync` later"
        )


class WandbLogger:
    """One W&B run a run: config, live rates, summary, charts, tables, step histograms, its folder as an artifact."""

    def __init__(self) -> None:
        self._run: Any = None
        self._running = Running()
        self._status = "interrupted"

    def start(self, run: RunConfig, run_id: str, num_samples: int, environment: Mapping[str, Any]) -> None:
        self.open(as_dict(run), run_id, environment, folder=Path(run.paths.results_dir), resume="allow")

    def open(
        self,
        config: Mapping[str, Any],
        run_id: str,
        environment: Mapping[str, Any],
        *,
        folder: Path,
        resume: Literal["allow", "never"],
    ) -> None:
        """Begin the W&B run of a configuration as nested plain dicts; `folder` gets the local files.

        `resume` says what happens online when the run is there already: `allow` = go on with it, `never` = an error.
        """
        self._running, self._status = Running(), "interrupted"
        folder.mkdir(parents=True, exist_ok=True)  # else W&B silently writes to a temporary folder
        logger = config["logger"]
        online = logger["mode"] == "online"
        self._run = wandb.init(
            project=logger["project"],
            entity=logger["entity"],
            id=run_id,
            name=run_id,
            group=logger["group"],
            job_type=config["method"]["name"],
            tags=_tags(config),
            config={**flatten(config), **flatten({"environment": environment})},
            dir=str(folder),
            mode="online" if online else "offline",
            resume=resume if online else None,
            reinit="finish_previous",
            settings=_quiet_settings(),
        )
        for names, axis in (((*_LIVE, "conversation/*"), "num_samples"), (("layers/*",), "choice")):
            for name in names:
                self._run.define_metric(name, step_metric=axis)

    def resume(self, samples: pd.DataFrame) -> None:
        self._running.add_frame(samples)

    def sample(self, samples: Sequence[Row], steps: Sequence[Row]) -> None:
        self._running.add(samples)
        own = Running()
        own.add(samples)
        alone = {f"conversation/{name}": value for name, value in own.metrics().items()}
        self._run.log({"num_samples": self._running.num_samples, **self._running.metrics(), **alone})

    def finish(self, summary: Mapping[str, Any], run_dir: Path, status: str) -> None:
        if self._run is None:  # finished earlier and not repeated: scripts/wandb_upload.py mirrors it again
            return
        self._status = status
        samples, choices = load_samples(run_dir), load_choices(run_dir)
        steps = own_steps(samples, load_steps(run_dir))
        self._run.log({**_tables(samples, choices), **_charts(summary), **_histograms(steps)})
        for row in charts.layer_choices(samples, choices):
            self._run.log(row)
        self._run.summary.update({**flatten(summary), "status": status, "run_dir": str(run_dir)})
        self._run.log_artifact(_folder(run_dir, summary))
        if (choices["kind"] == "skip_set").any():
            self._run.log({"layers/heatmap": _heat_map(run_dir)})

    def close(self) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if self._status == FINISHED else 1)
            self._run = None


def mirror(run_dir: Path, **settings: Any) -> None:
    """Log a run folder as it would have been logged live; `settings` replace entries of the stored logger config.

    Offline files go below the results folder. Raises DataError for a folder that did not end or is damaged, ConfigError
    for online without a login, SpecbenchError when W&B refuses (the run is there already, no network).
    """
    config = load_config(run_dir)
    config["logger"] = {**config["logger"], **settings}
    if not (run_dir / "status.json").exists():
        raise DataError(f"{run_dir}: the run has not ended; the command that began it continues it")
    status, summary = read_json(run_dir / "status.json")["status"], read_json(run_dir / "summary.json")
    if config["logger"]["mode"] == "online":
        check_login()
    folder = run_dir.absolute().parent
    folder = folder.parent if folder.name == "runs" else folder
    logger = WandbLogger()
    try:
        logger.open(config, run_dir.name, read_json(run_dir / "environment.json"), folder=folder, resume="never")
        for rows in charts.conversations(load_samples(run_dir)):
            logger.sample(rows, ())
        logger.finish(summary, run_dir, status)
    except wandb.Error as error:
        raise SpecbenchError(f"{run_dir.name}: W&B refused it ({error})") from error
    finally:
        logger.close()


def _tags(config: Mapping[str, Any]) -> list[str]:
    names = [config[group]["name"] for group in ("model", "method", "task")]
    tags = [*names, config["hardware"]["dtype"], *config["logger"]["tags"]]
    return list(dict.fromkeys(tag[:_TAG_LENGTH] for tag in tags))


def _quiet_settings() -> wandb.Settings:
    # No samplers and no console capture: they would run beside what is being timed.
    return wandb.Settings(
        silent=True, console="off", x_disable_stats=True, save_code=False, init_timeout=_LOGIN_SECONDS
    )


def _folder(run_dir: Path, summary: Mapping[str, Any]) -> wandb.Artifact:
    """The run folder as an artifact. Its files stay where they are and are read when W&B uploads them."""
    identity = {name: summary.get(name) for name in ("model", "method", "controller", "task")}
    artifact = wandb.Artifact(run_dir.name, type="results", metadata=identity)
    for file in sorted(file for pattern in _FILES for file in run_dir.glob(pattern)):
        artifact.add_file(str(file), policy="immutable", skip_cache=True)
    return artifact


def _tables(samples: pd.DataFrame, choices: pd.DataFrame) -> dict[str, Any]:
    frames = {"samples": _plain(samples)} | ({"choices": _shown(choices)} if len(choices) else {})
    return {name: wandb.Table(dataframe=frame) for name, frame in frames.items()}


def _charts(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Custom charts; runs that are compared in one workspace lie over each other in each of them."""
    found: dict[str, Any] = {}
    position, phase, cost = charts.by_position(summary), charts.by_phase(summary), charts.verify_cost(summary)
    if len(position):
        table = wandb.Table(dataframe=position)
        title = "Acceptance by position of the draft"
        found["charts/acceptance_by_position"] = wandb.plot.line(table, "position", "acceptance_rate", title=title)
    if len(phase):
        table = wandb.Table(dataframe=phase)
        title = "Milliseconds a token, by phase"
        found["charts/time_by_phase"] = wandb.plot.bar(table, "phase", "ms_per_token", title=title)
    if len(cost):
        table = wandb.Table(dataframe=cost)
        title = "Cost of a target pass over T rows, t(T) / t(1)"
        found["charts/verify_cost"] = wandb.plot.line(table, "rows", "relative_cost", title=title)
    return found


def _heat_map(run_dir: Path) -> wandb.Image:
    """The sublayers that each choice left out, over the verify steps of the run."""
    from specbench.figures import skip_heatmap  # late: only methods that choose layers pay for matplotlib

    picture = BytesIO()
    skip_heatmap.build(skip_heatmap.folder_frame(run_dir)).savefig(picture, format="png", dpi=_DPI)
    return wandb.Image(Image.open(picture), caption=run_dir.name)


def _plain(samples: pd.DataFrame) -> pd.DataFrame:
    """The samples without id lists and with None for what is missing, as a W&B table wants it."""
    frame = samples.drop(columns=[name for name in _LEFT_OUT if name in samples])
    return frame.astype(object).where(frame.notna(), None)


def _shown(choices: pd.DataFrame) -> pd.DataFrame:
    """Choices with their usual numbers as columns; all that a choice knows stays in `values` (JSON)."""
    frame = expanded(choices, _CHOICE_COLUMNS)
    return _plain(frame.assign(sublayers=frame["sublayers"].map(json.dumps)))


def _histograms(steps: pd.DataFrame) -> dict[str, Any]:
    """Accepted length, draft length and seconds of the steps that count; nothing for methods without steps."""
    seconds = steps[["draft_s", "verify_s", "adapt_s", "host_s"]].sum(axis=1)
    counts = {"num_accepted": steps["num_accepted"], "num_draft_tokens": with_spine(steps)["num_draft_tokens"]}
    lengths = {name: column.to_numpy(dtype=np.int64) for name, column in counts.items()}
    found = {f"steps/{name}": _counted(values) for name, values in lengths.items() if values.size}
    if len(steps):
        found["steps/seconds"] = wandb.Histogram(seconds.tolist())
    return found


def _counted(lengths: np.ndarray) -> wandb.Histogram:
    """A histogram with one bar a length, or fewer where W&B would refuse so many."""
    bars = min(int(lengths.max()) + 1, wandb.Histogram.MAX_LENGTH)
    return wandb.Histogram(np_histogram=np.histogram(lengths, bins=bars, range=(-0.5, lengths.max() + 0.5)))
