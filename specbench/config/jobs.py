"""Jobs of a command: each leaves its outcome in a file, and the command ends with all of them and an exit code.

A file a job, because a launcher may run jobs in other processes.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from specbench.config.composing import job_number, run_config
from specbench.config.root import RunConfig
from specbench.config.text import aligned
from specbench.types import SampleError, SpecbenchError

log = logging.getLogger(__name__)

FILE_NAME = "job.json"
EXIT_CODES = {"done": 0, "planned": 0, "user error": 2, "failed": 1, "interrupted": 130, "running": 1}


@dataclass
class JobRecord:
    """Outcome of one job: `objective` is null where there is none, `started` is unix seconds."""

    number: int
    overrides: list[str]
    started: float
    status: str = "running"
    objective: float | None = None
    message: str = ""

    def save(self, folder: Path) -> None:
        """Write the record into the job's folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE_NAME).write_text(json.dumps(asdict(self)), encoding="utf-8")


@dataclass
class Command:
    """What was started: the folder that the jobs write below, and when."""

    folder: Path
    started: float

    def records(self) -> list[JobRecord]:
        """Records of this command's jobs in order; older ones in the same folder are not its own."""
        files = [self.folder / FILE_NAME, *self.folder.glob(f"*/{FILE_NAME}")]
        found = [JobRecord(**json.loads(file.read_text(encoding="utf-8"))) for file in files if file.is_file()]
        return sorted((record for record in found if record.started >= self.started), key=lambda r: r.number)


_current: Command | None = None
_told: set[str] = set()  # users' mistakes that this process has printed


class JobsCallback(Callback):
    """Remembers what this process started, so that the command can close with all jobs."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        _remember(config.hydra.run.dir)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        _remember(config.hydra.sweep.dir)


def run_job(cfg: DictConfig, measure: Callable[[RunConfig], float | None]) -> float:
    """Check the config, run `measure` on it and record the outcome; gives NaN where there is no objective.

    Only an interrupt is raised: a job that fails must not stop the others.
    """
    hydra_cfg = HydraConfig.get()
    folder = Path(hydra_cfg.runtime.output_dir)
    number = job_number() or 0
    record = JobRecord(number, list(hydra_cfg.overrides.task), time.time())
    record.save(folder)
    try:
        _measure(record, cfg, measure)
    except BaseException:
        record.status = "interrupted"
        raise
    finally:
        record.save(folder)
    return math.nan if record.objective is None else record.objective


def _measure(record: JobRecord, cfg: DictConfig, measure: Callable[[RunConfig], float | None]) -> None:
    try:
        config = run_config(cfg, record.overrides)
        value = measure(config)
        record.objective = None if value is None or not math.isfinite(value) else float(value)
        record.status = "planned" if config.dry_run and value != 0 else "done"
    except SampleError as error:  # everything else was measured and kept
        record.status, record.message = "failed", str(error)
        log.error("%s", error)
    except SpecbenchError as error:
        record.status, record.message = "user error", str(error)
        if record.message not in _told:  # many jobs of a sweep may have the same mistake
            log.error("%s", error)
        _told.add(record.message)
    except Exception as error:
        record.status, record.message = "failed", f"{type(error).__name__}: {error}"
        log.exception("unexpected error")


def finish() -> tuple[int, str]:
    """Exit code of the command, and the closing table of a sweep (empty for a single job)."""
    records = _current.records() if _current else []
    code = max((EXIT_CODES[record.status] for record in records), default=0)
    return code, table(records) if len(records) > 1 else ""


def table(records: Sequence[JobRecord]) -> str:
    """What all jobs have in common, then one line a job: its own words, status, objective, and what went wrong.

    In a dry run seconds stand for the objective.
    """
    planned = all("dry_run=true" in map(str.lower, record.overrides) for record in records)
    common = [word for word in records[0].overrides if all(word in record.overrides for record in records)]
    rows = [("job", "overrides", "status", "about s" if planned else "objective")]
    for record in records:
        own = " ".join(word for word in record.overrides if word not in common)
        rows.append((str(record.number), own, record.status, _number(record.objective)))
    lines = [*([f"all jobs: {' '.join(common)}"] if common else []), *aligned(rows)]
    for message in dict.fromkeys(r.message for r in records if r.message):
        numbers = [str(r.number) for r in records if r.message == message]
        lines.append(f"job{'s' * (len(numbers) > 1)} {', '.join(numbers)}: {message}")
    count = sum(record.status == "done" for record in records)
    return "\n".join([*lines, _total(records) if planned else f"{count} of {len(records)} jobs done"])


def _total(records: Sequence[JobRecord]) -> str:
    """What a dry run amounts to."""
    left = [record.objective for record in records if record.status == "planned"]
    seconds = [value for value in left if value is not None]
    unknown, done = len(left) - len(seconds), sum(record.status == "done" for record in records)
    rest = f", and {unknown} jobs that no earlier run tells the time of" if unknown else ""
    rest += f"; {done} are done already" if done else ""
    return f"{len(left)} jobs planned, none run: about {sum(seconds) / 60:.0f} min{rest}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _remember(folder: str) -> None:
    global _current
    _current = Command(Path(folder), time.time())
