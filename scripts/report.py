"""Print the closing table again from stored runs: python scripts/report.py results/runs (or one run folder)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table

from specbench.analysis.report import ClosingTable, closing_table
from specbench.results.summary import load_runs

PIPE_WIDTH = 220  # a table cut to 80 columns in a log file would be useless


def main(argv: list[str] | None = None) -> int:
    """Print the table of all runs below the given folders; 1 when there are none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", default=["results/runs"], help="folders of runs, or run folders")
    parser.add_argument("--method", help="only runs of this method")
    parser.add_argument("--task", help="only runs of this task")
    options = parser.parse_args(argv)
    frames = [frame for frame in map(load_runs, options.folders) if not frame.empty]
    runs = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    for name in ("method", "task"):
        if getattr(options, name) and not runs.empty:
            runs = runs[runs[name] == getattr(options, name)]
    if runs.empty:
        wanted = ", ".join(str(Path(folder)) for folder in options.folders)
        print(f"no runs in {wanted}", file=sys.stderr)
        return 1
    show(closing_table(runs))
    return 0


def show(closing: ClosingTable) -> None:
    """Draw the table and the lines below it."""
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    table = Table()
    for column in closing.columns:
        table.add_column(column, overflow="fold")
    for row in closing.rows:
        table.add_row(*row)
    console.print(table)
    for note in closing.notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
