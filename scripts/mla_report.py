"""Print the tables of matched cells again: python scripts/mla_report.py results (or --frozen results/paper).

Everything is made of stored rows; no model is loaded.
"""

from __future__ import annotations

import argparse
import sys

from specbench.analysis.matched_cells import RULE, Rule
from specbench.analysis.matched_report import report, report_of
from specbench.results.frozen import load_frozen
from specbench.types import SpecbenchError


def main(argv: list[str] | None = None) -> int:
    """Print the tables; 2 where a file is damaged or arms do not match."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default="results", help="a folder of results (default: results)")
    parser.add_argument("--frozen", action="store_true", help="the folder holds frozen tables")
    parser.add_argument("--draws", type=int, default=RULE.draws, help="bootstrap draws")
    parser.add_argument("--seed", type=int, default=RULE.seed, help="of the draws")
    parser.add_argument("--tolerance-pp", type=float, default=100 * RULE.tolerance, help="points that count as none")
    options = parser.parse_args(argv)
    rule = Rule(options.draws, options.seed, options.tolerance_pp / 100)
    try:
        if options.frozen:
            frozen = load_frozen(options.folder)
            print(report_of(frozen.cells, frozen.reconstruction, frozen.runs, rule))
        else:
            print(report(options.folder, rule))
    except SpecbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
