"""The terminal: a progress bar on stderr while a run goes on, its closing table on stdout."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from specbench.analysis.report import ClosingTable, closing_table
from specbench.config import RunConfig, aligned
from specbench.loggers.base import Row
from specbench.loggers.running import Running
from specbench.results.summary import load_runs

_SHOWN = {"tokens_per_second": "{:.1f} tok/s", "acceptance_rate": "acceptance {:.2f}", "walltime_speedup": "{:.2f}x AR"}


class ConsoleLogger:
    """A bar (only where stderr is a terminal) with running tokens/s, acceptance and speedup, then the table."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None
        self._running = Running()

    def start(self, run: RunConfig, run_id: str, num_samples: int, environment: Mapping[str, Any]) -> None:
        self._running = Running()
        self._bar = tqdm(
            total=num_samples, desc=run_id, unit="sample", file=sys.stderr, disable=None, leave=False, mininterval=0
        )

    def resume(self, samples: pd.DataFrame) -> None:
        self._running.add_frame(samples)

    def sample(self, samples: Sequence[Row], steps: Sequence[Row]) -> None:
        self._running.add(samples)
        if self._bar is not None:
            self._bar.set_postfix_str(describe(self._running), refresh=False)
            self._bar.update()

    def finish(self, summary: Mapping[str, Any], run_dir: Path, status: str) -> None:
        self.close()
        sys.stdout.write(render(closing_table(load_runs(run_dir))) + "\n")
        sys.stdout.flush()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def describe(running: Running) -> str:
    """The totals so far in a few words."""
    metrics = running.metrics()
    words = [text.format(metrics[name]) for name, text in _SHOWN.items() if name in metrics]
    failed = [f"{running.num_failed} failed"] if running.num_failed else []
    return ", ".join([*words, *failed])


def render(table: ClosingTable) -> str:
    """The closing table as text: aligned columns, then one line a run; an empty table says so."""
    if not table.rows:
        return "no runs"
    return "\n".join([*aligned([table.columns, *table.rows]), *table.notes])
