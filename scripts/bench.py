"""Measure the decode loop: python scripts/bench.py [--quick] [--only NAME,...]; then --render FILE for the page.

Everything is compared within one process, in turns, as medians; needs a quiet machine.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from bench import ROOT
from bench.report import PAGE, TITLES, render, row, summary

from specbench.results.files import read_json, write_json
from specbench.types import SpecbenchError


def main(argv: list[str]) -> int:
    options = parse(argv)
    try:
        if options.render is not None:
            options.page.parent.mkdir(parents=True, exist_ok=True)
            old = options.page.read_text(encoding="utf-8") if options.page.is_file() else ""
            options.page.write_text(render(read_json(options.render), old), encoding="utf-8")
            print(f"written: {options.page}")
            return 0
        run(options, shlex.join(["python", "scripts/bench.py", *argv]))
    except SpecbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def run(options: argparse.Namespace, command: str) -> None:
    """Measure block after block; what is finished is on disk before the next one starts."""
    from bench.runs import Machine, measure, merge  # only now: the page and --help need no torch
    from bench.stage import QUICK, Settings

    machine = Machine(options.model, options.dtype, options.threads, "quick" if options.quick else "full")
    out = options.out or ROOT / "results" / "bench" / f"{machine.slug}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    for result in measure(machine, options.only, QUICK if options.quick else Settings(), command):
        merged = merge(read_json(out) if out.is_file() else {}, result)
        write_json(out, merged)
        for figure in result["block"]["figures"]:
            print(row(figure, result["block"]), flush=True)
    print(summary(read_json(out)))
    print(f"written: {out}\nfor the page: python scripts/bench.py --render {out}")


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded:smollm2", help="folder, Hub id, .gguf file or embedded:smollm2")
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", type=names, default=tuple(TITLES), help=f"of {','.join(TITLES)}")
    parser.add_argument("--quick", action="store_true", help="a few repeats, to see that it works")
    parser.add_argument("--out", type=Path, help="default: results/bench/<model>-<dtype>-<threads>t.json")
    parser.add_argument(
        "--render", type=Path, metavar="FILE", help="write the page from a result file, measure nothing"
    )
    parser.add_argument("--page", type=Path, default=PAGE, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def names(text: str) -> tuple[str, ...]:
    """Block names in the order in which they run."""
    asked = text.split(",")
    unknown = [name for name in asked if name not in TITLES]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are: {', '.join(TITLES)}")
    return tuple(name for name in TITLES if name in asked)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
