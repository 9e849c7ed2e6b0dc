"""A run that only says what it would do: which samples are left and about how long they take."""

from __future__ import annotations

import logging
from pathlib import Path

from specbench.config import RunConfig
from specbench.results.journal import recorded_ids
from specbench.results.store import JOURNAL, is_finished
from specbench.runner.estimate import estimated_seconds
from specbench.runner.planning import describe, make_task, ordered_samples

log = logging.getLogger(__name__)


def dry_run(config: RunConfig, run_dir: Path) -> float | None:
    """Tell what is left of a run and give its estimated seconds: 0 of a finished one, None where none can be told."""
    if is_finished(run_dir):
        log.info("%s is finished and not repeated, 0 s", run_dir.name)
        return 0.0
    samples = ordered_samples(config, make_task(config))
    recorded = recorded_ids(run_dir / JOURNAL)
    left = [sample for sample in samples if sample.id not in recorded]
    seconds = estimated_seconds(config, len(left)) if left else 0.0
    log.info(describe(left, run_dir.name, seconds, done=len(samples) - len(left)))
    return seconds
