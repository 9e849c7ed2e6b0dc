"""What the runner tells a logger, and how a logger that breaks is kept from costing results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from specbench.config import RunConfig

log = logging.getLogger(__name__)

Row = Mapping[str, Any]


class Logger(Protocol):
    """Hears about one run after the other; never called inside a timed region."""

    def start(self, run: RunConfig, run_id: str, num_samples: int, environment: Mapping[str, Any]) -> None:
        """A run begins; `num_samples` conversations are still to be decoded (fewer than all when it is resumed)."""

    def resume(self, samples: pd.DataFrame) -> None:
        """After `start`: the samples frame of what earlier processes recorded of the run; it counts in its rates."""

    def sample(self, samples: Sequence[Row], steps: Sequence[Row]) -> None:
        """One conversation is recorded: its rows as results.schema has them, both arms and all attempts."""

    def finish(self, summary: Mapping[str, Any], run_dir: Path, status: str) -> None:
        """All files of the run are written: finished, failed or interrupted."""

    def close(self) -> None:
        """The run is over, whatever happened."""


class Loggers:
    """Several loggers as one. One that raises is dropped with a warning: results are files and never wait for it."""

    def __init__(self, *loggers: Logger) -> None:
        self._loggers = list(loggers)

    def start(self, run: RunConfig, run_id: str, num_samples: int, environment: Mapping[str, Any]) -> None:
        self._each(lambda logger: logger.start(run, run_id, num_samples, environment))

    def resume(self, samples: pd.DataFrame) -> None:
        self._each(lambda logger: logger.resume(samples))

    def sample(self, samples: Sequence[Row], steps: Sequence[Row]) -> None:
        self._each(lambda logger: logger.sample(samples, steps))

    def finish(self, summary: Mapping[str, Any], run_dir: Path, status: str) -> None:
        self._each(lambda logger: logger.finish(summary, run_dir, status))

    def close(self) -> None:
        self._each(lambda logger: logger.close())

    def _each(self, call: Callable[[Logger], None]) -> None:
        for logger in tuple(self._loggers):
            try:
                call(logger)
            except Exception as error:  # whatever a library raises, the measured results are worth more
                self._loggers.remove(logger)
                name = type(logger).__name__
                log.warning("%s stopped (%s: %s); results are not affected", name, type(error).__name__, error)
