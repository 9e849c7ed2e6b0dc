"""Write every table of a results folder as Markdown and LaTeX (booktabs), published numbers beside ours.

python scripts/make_tables.py                          # results/paper -> results/tables
python scripts/make_tables.py results                  # of runs that are not frozen
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from specbench.analysis.all_tables import all_tables
from specbench.analysis.table_text import latex, markdown
from specbench.config.script import exit_code
from specbench.results.files import make_folder, write_atomically
from specbench.results.frozen import FOLDER
from specbench.results.opening import open_results
from specbench.results.published import load_published


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", type=Path, default=FOLDER, help="frozen results or a folder of runs")
    parser.add_argument("--published", type=Path, default=Path("results/published"), help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("results/tables"), help="default: %(default)s")
    options = parser.parse_args(argv)
    return exit_code(lambda: write(options.results, options.published, options.out))


def write(results: Path, published: Path, out: Path) -> int:
    """Write the tables and say which could not be made; 1 when there is none."""
    made = all_tables(open_results(results), load_published(published))
    make_folder(out)
    for table in made.tables:
        write_atomically(out / f"{table.name}.md", markdown(table).encode())
        write_atomically(out / f"{table.name}.tex", latex(table).encode())
        print(f"{out / table.name}.md, .tex: {len(table.rows)} rows")
    for reason in made.missing:
        print(f"not made: {reason}", file=sys.stderr)
    return 0 if made.tables else 1


if __name__ == "__main__":
    sys.exit(main())
