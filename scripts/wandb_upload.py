"""Mirror finished run folders to Weights & Biases, as if they had been logged live.

    python scripts/wandb_upload.py results/runs                    # every ended run below; needs `wandb login`
    python scripts/wandb_upload.py RUN_DIR --project mine --group paper
    python scripts/wandb_upload.py results/runs --mode offline     # files for `wandb sync`, below each results folder

A run's id is its folder's name; one that is there already is refused.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from specbench.results.store import FAILED, FINISHED
from specbench.results.summary import load_runs
from specbench.types import SpecbenchError

SETTINGS = ("mode", "project", "entity", "group")


def main(argv: list[str] | None = None) -> int:
    """Mirror every ended run; 1 when one could not be mirrored or there is none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="folders of runs, or run folders")
    parser.add_argument("--mode", choices=("online", "offline"), default="online")
    parser.add_argument("--project", help="default: the one the run was configured with")
    parser.add_argument("--entity", help="user or team; default: as configured")
    parser.add_argument("--group", help="default: the run's experiment or sweep")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    settings = {name: getattr(options, name) for name in SETTINGS if getattr(options, name)}
    failures = [upload(folder, settings) for folder in options.folders]
    return int(any(failures))


def upload(folder: Path, settings: dict[str, str]) -> int:
    """Mirror the ended runs at or below a folder; the number of those that could not be, an empty folder being one."""
    from specbench.loggers.wandb import mirror  # late: --help answers at once

    runs, failed = load_runs(folder), 0
    if runs.empty:
        print(f"no runs in {folder}", file=sys.stderr)
        return 1
    for run_dir, status in zip(runs["run_dir"], runs["status"], strict=True):
        if status not in (FINISHED, FAILED):
            print(f"left out: {run_dir} ({status})")
            continue
        try:
            mirror(Path(run_dir), **settings)
            print(f"mirrored: {run_dir}")
        except SpecbenchError as error:
            failed += 1
            print(f"error: {error}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
