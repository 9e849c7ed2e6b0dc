"""A word after a sweep: what an experiment's own report makes of the results, once all jobs are over."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from specbench.types import SpecbenchError

log = logging.getLogger(__name__)


class ClosingReport(Callback):
    """Prints what the function at the dotted path `report` says of `paths.results_dir`; nothing after a dry run."""

    def __init__(self, report: str) -> None:
        self._report = report

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        if config.dry_run:
            return
        module, _, name = self._report.rpartition(".")
        try:
            text = getattr(importlib.import_module(module), name)(config.paths.results_dir)
        except SpecbenchError as error:  # the jobs themselves are done and stored
            log.error("no closing report: %s", error)
            return
        sys.stdout.write(f"\n{text}\n")
