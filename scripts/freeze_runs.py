"""Copy finished runs into the small files that figures and tables are drawn from.

    python scripts/freeze_runs.py                      # experiments of size=embedded: results -> results/paper
    python scripts/freeze_runs.py FOLDER --to FOLDER --all

A run that is frozen already is replaced, everything else stays; run it as often as runs finish and commit the folder.
"""

from __future__ import annotations

import argparse
import logging
import sys

from specbench.config import SIZES
from specbench.config.script import exit_code
from specbench.results.frozen import FOLDER, freeze


def main(argv: list[str] | None = None) -> int:
    """Freeze, and say how many runs; 1 when there is nothing to freeze, 2 when a file is damaged."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", default="results", help="folder of runs (default: results)")
    parser.add_argument("--to", default=str(FOLDER), help=f"where the files go (default: {FOLDER})")
    parser.add_argument("--size", choices=SIZES, default="embedded", help="of the experiments (default: %(default)s)")
    parser.add_argument("--all", action="store_true", help="runs of every size, and those of no experiment too")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    return exit_code(lambda: frozen(options))


def frozen(options: argparse.Namespace) -> int:
    """Freeze what is finished and say how much that is."""
    run_ids = freeze(options.results, options.to, size=None if options.all else options.size)
    if not run_ids:
        print(f"no finished runs of experiments to freeze in {options.results}", file=sys.stderr)
        return 1
    print(f"{len(run_ids)} runs are in {options.to}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
