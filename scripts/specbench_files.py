"""Spec-Bench answer files: export a run, look at a file, or score one file against another.

python scripts/specbench_files.py export RUN_DIR OUT_DIR [--swift]
python scripts/specbench_files.py import FILE [--swift]
python scripts/specbench_files.py score METHOD BASELINE --tokenizer DIR [--unbiased]
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from specbench.config.script import exit_code
from specbench.results import specbench_files as files
from specbench.results.schema import ARMS, METHOD
from specbench.results.specbench_export import conversations
from specbench.results.store import read_tables
from specbench.results.summary import load_runs
from specbench.types import ConfigError


def export(args: argparse.Namespace) -> None:
    tables = read_tables(args.run_dir)
    samples, steps = (tables[name].to_pylist() for name in ("samples", "steps"))
    task = str(load_runs(args.run_dir).iloc[0]["task"])
    write = files.export_swift if args.swift else files.export_answers
    for arm in [arm for arm in ARMS if any(row["arm"] == arm for row in samples)]:
        name = args.run_dir.resolve().name + ("" if arm == METHOD else f"-{arm}")
        path = args.out_dir / f"{name}.jsonl"
        count = write(conversations(samples, steps, task=task, model_id=name, arm=arm), path)
        print(f"{path}: {count} answers")


def show(args: argparse.Namespace) -> None:
    answers = files.read_swift(args.file) if args.swift else files.read_answers(args.file)
    accepted = [length for answer in answers for length in answer.accept_lengths]
    tokens, seconds = (sum(sum(getattr(a, key)) for a in answers) for key in ("new_tokens", "wall_time"))
    mat = sum(accepted) / len(accepted) if accepted else float("nan")
    print(f"{args.file}: {len(answers)} answers, {tokens} tokens in {seconds:.3f} s, mat {mat:.3f}")


def score(args: argparse.Namespace) -> None:
    for path in (args.method, args.baseline):
        files.read_answers(path)  # what is wrong with a file is told before a tokenizer is loaded
    tokenizer = load_tokenizer(args.tokenizer)
    for task in (*files.SUBSETS, files.OVERALL):
        figures = files.score(
            args.method,
            args.baseline,
            lambda text: len(tokenizer(text).input_ids),
            task,
            baseline_count="recorded" if args.unbiased else "text",
        )
        cells = [f"{name} {'-' if value is None else f'{value:.4g}'}" for name, value in figures.items()]
        print(f"{task:<15} {'  '.join(cells)}")


def load_tokenizer(name: str) -> Any:
    """The library's tokenizer of a folder or Hub id; ConfigError where there is none."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name)
    except Exception as error:  # what is no tokenizer shows itself as many kinds of error
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"--tokenizer {name}: no folder with a tokenizer and no Hub id ({reason})") from error


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, run, paths, flag in (
        ("export", export, ("run_dir", "out_dir"), "--swift"),
        ("import", show, ("file",), "--swift"),
        ("score", score, ("method", "baseline"), "--unbiased"),
    ):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        for path in paths:
            command.add_argument(path, type=Path)
        command.add_argument(flag, action="store_true")
    command.add_argument("--tokenizer", required=True, help="folder or name of the tokenizer that counts the baseline")
    return parser.parse_args()


def main() -> int:
    """0: done; 2: a user's mistake or a file that cannot be read or written."""
    arguments = parse()
    return exit_code(lambda: arguments.run(arguments))


if __name__ == "__main__":
    sys.exit(main())
