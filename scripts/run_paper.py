"""Run the experiments that figures and tables are made of as far as they are missing, then make both.

    python scripts/run_paper.py --dry-run                           # what is missing, and about how long it takes
    python scripts/run_paper.py data=local data.dir=FOLDER          # run, freeze into results/paper, draw
    python scripts/run_paper.py --only headline,longdoc --paper results/mine

Runs in results/paper count as done on whatever machine they were made; name another folder to measure your own.
Finished runs are frozen after each experiment, and the same command continues where it was stopped.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
from pathlib import Path

from specbench.config import SIZES, experiments
from specbench.config.script import exit_code
from specbench.results.frozen import FOLDER, load_frozen
from specbench.runner.paper import carry_out, overview, plans
from specbench.types import SpecbenchError

NOT_OF_A_PAPER = ("demo",)


def main(argv: list[str] | None = None) -> int:
    """0: everything is there; 1: some jobs failed or a picture could not be made; 2: a user's mistake; 130: Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="further words of run.py, for every job")
    parser.add_argument("--only", help="experiments, separated by commas (default: all)")
    parser.add_argument("--size", choices=SIZES, default="embedded", help="of the experiments (default: %(default)s)")
    parser.add_argument("--paper", type=Path, default=FOLDER, help="the frozen runs (default: %(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="list what is missing, run and draw nothing")
    options = parser.parse_intermixed_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    return exit_code(lambda: run_paper(options))


def run_paper(options: argparse.Namespace) -> int:
    """Plan, tell, run, draw."""
    frozen = set(load_frozen(options.paper).runs["job"])
    todo = plans(chosen(options.only), [f"size={options.size}", *options.words], frozen)
    print(overview(todo), flush=True)
    if options.dry_run:
        return 0
    problems = [f"{each.experiment}: {text}" for each in todo for text in carry_out(each, options.paper)]
    codes = [draw(script, options.paper) for script in ("make_figures", "make_tables")]
    print("\n".join(problems or ["every run is there"]), file=sys.stderr)
    return int(bool(problems) or any(codes))


def chosen(only: str | None) -> list[str]:
    """The experiments to run; the leaderboard first, because others share its runs."""
    every = [name for name in experiments() if name not in NOT_OF_A_PAPER]
    names = only.split(",") if only else sorted(every, key=lambda name: name != "headline")
    unknown = sorted(set(names) - set(experiments()))
    if unknown:
        raise SpecbenchError(f"--only {','.join(unknown)}: no such experiment. Legal: {', '.join(every)}")
    return names


def draw(script: str, paper: Path) -> int:
    """Figures or tables from the frozen runs, in a process of their own; gives its exit code."""
    command = [sys.executable, str(Path(__file__).with_name(f"{script}.py")), str(paper)]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
