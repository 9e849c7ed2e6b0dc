"""Draw every figure that stored results have data for: python scripts/make_figures.py (from results/paper).

    python scripts/make_figures.py results --out results/figures/mine --venue acl
    python scripts/make_figures.py --only speedup_by_task skip_heatmap

Each figure is a PDF, a PNG, a CSV of what is drawn, and a JSON of where it comes from. What cannot be drawn is listed
with the reason; that is an error (1) only with --strict, or where drawing itself failed.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from specbench.config.script import exit_code
from specbench.figures.catalogue import FIGURES, Outcome, draw_all
from specbench.figures.style import DEFAULT_VENUE, VENUES, venue
from specbench.results.files import make_folder
from specbench.results.frozen import FOLDER
from specbench.results.opening import open_results


def main(argv: list[str] | None = None) -> int:
    """Draw, list what was not drawn, and give the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help=f"frozen, or a folder of runs; default: {FOLDER}")
    parser.add_argument("--results", type=Path, default=FOLDER, help="the same as FOLDER")
    parser.add_argument("--out", type=Path, default=Path("results/figures"), help="default: %(default)s")
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=(), metavar="NAME", help=", ".join(FIGURES))
    parser.add_argument("--venue", choices=VENUES, default=DEFAULT_VENUE, help="sizes; default: %(default)s")
    parser.add_argument("--strict", action="store_true", help="fail where a figure has too little data")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # it tells of every table of every font
    return exit_code(lambda: draw(options))


def draw(options: argparse.Namespace) -> int:
    """Draw what the results have data for."""
    frozen = open_results(options.folder or options.results)
    make_folder(options.out)
    with venue(options.venue):
        outcomes = [_told(outcome) for outcome in draw_all(frozen, options.out, options.only, venue=options.venue)]
    return _closed(outcomes, options.out, strict=options.strict)


def _told(outcome: Outcome) -> Outcome:
    if outcome.files:
        print(f"{outcome.part.name}: {', '.join(path.suffix[1:] for path in outcome.files)}")
    return outcome


def _closed(outcomes: list[Outcome], out: Path, *, strict: bool) -> int:
    drawn, missing = [o for o in outcomes if o.files], [o for o in outcomes if not o.files]
    print(f"{len(drawn)} figures in {out}")
    for outcome in missing:
        print(f"{'FAILED' if outcome.error else 'not drawn'}: {outcome.part.name}: {outcome.reason}", file=sys.stderr)
    failed = any(outcome.error for outcome in missing)
    return 1 if failed or (strict and missing) else 0


if __name__ == "__main__":
    sys.exit(main())
