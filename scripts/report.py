"""Print the closing table again from stored runs, or write everything about them on one page.

python scripts/report.py results/runs                   # or one run folder, or frozen rows: results/paper
python scripts/report.py results/paper --html page.html # tables, figures, configuration, environment in one file
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table

from specbench.analysis.report import ClosingTable, closing_table
from specbench.config.script import exit_code
from specbench.results.files import make_folder, write_atomically
from specbench.results.opening import is_frozen, open_results
from specbench.results.published import load_published
from specbench.results.summary import load_runs

PIPE_WIDTH = 220  # a table cut to 80 columns in a log file would be useless


def main(argv: list[str] | None = None) -> int:
    """Print the table of all runs in the given folders, 1 when there are none; or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", default=["results/runs"], help="folders of runs, or run folders")
    parser.add_argument("--method", help="only runs of this method")
    parser.add_argument("--task", help="only runs of this task")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page of one folder")
    parser.add_argument("--published", type=Path, default=Path("results/published"), help="for --html")
    options = parser.parse_args(argv)
    if options.html:
        if len(options.folders) > 1 or options.method or options.task:
            parser.error("--html takes one folder, whole")
        return exit_code(lambda: write_page(Path(options.folders[0]), options.published, options.html))
    return exit_code(lambda: print_table(options))


def print_table(options: argparse.Namespace) -> int:
    """Print the table of the wanted runs; 1 when there are none."""
    frames = [frame for frame in map(runs_in, options.folders) if not frame.empty]
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


def runs_in(folder: str) -> pd.DataFrame:
    """A row a run: of frozen rows, or of the runs in a folder, unfinished ones too."""
    return open_results(folder).runs if is_frozen(Path(folder)) else load_runs(folder)


def write_page(folder: Path, published: Path, out: Path) -> int:
    """Write the page of one folder; SpecbenchError on results or published numbers that cannot be read."""
    from specbench.figures.page import page  # matplotlib takes a second, which the closing table need not wait for

    make_folder(out.parent)  # first: the page takes a while
    text = page(open_results(folder), load_published(published), f"specbench: {folder}")
    write_atomically(out, text.encode())
    print(f"{out}: {len(text) / 1e6:.1f} MB")
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
