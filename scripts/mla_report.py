"""Print the tables of matched cells again: python scripts/mla_report.py results (or --frozen results/paper).

Everything is made of stored rows; no model is loaded.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from specbench.analysis.matched_cells import RULE, Rule
from specbench.analysis.matched_report import report, report_of
from specbench.config.script import exit_code
from specbench.results.frozen import load_frozen
from specbench.results.opening import is_frozen
from specbench.types import DataError


def main(argv: list[str] | None = None) -> int:
    """Print the tables; 2 where a file is damaged or arms do not match."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path("results"), help="a folder of results (default: results)"
    )
    parser.add_argument("--frozen", action="store_true", help="the folder holds frozen tables")
    parser.add_argument("--draws", type=int, default=RULE.draws, help="bootstrap draws")
    parser.add_argument("--seed", type=int, default=RULE.seed, help="of the draws")
    parser.add_argument("--tolerance-pp", type=float, default=100 * RULE.tolerance, help="points that count as none")
    options = parser.parse_args(argv)
    rule = Rule(options.draws, options.seed, options.tolerance_pp / 100)
    return exit_code(lambda: print(tables(options.folder, rule, frozen=options.frozen)))


def tables(folder: Path, rule: Rule, *, frozen: bool) -> str:
    """The tables as text; DataError where there is no such folder."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; name a folder of results")
    if not (frozen or is_frozen(folder)):
        return report(folder, rule)
    rows = load_frozen(folder)
    return report_of(rows.cells, rows.reconstruction, rows.runs, rule)


if __name__ == "__main__":
    sys.exit(main())
