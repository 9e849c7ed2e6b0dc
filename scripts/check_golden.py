"""Check this project's public code against a folder of golden data.

    python scripts/check_golden.py DIR [-v]

Prints a line a file, then `N passed, M failed, K skipped`; exits with 1 when a case failed or DIR holds no data.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

import torch
from golden.outcome import FAILED, PASSED, SKIPPED, Outcome
from golden.registry import check_folder


def counts(outcomes: list[Outcome]) -> str:
    found = Counter(outcome.status for outcome in outcomes)
    return ", ".join(f"{found[status]} {status}" for status in (PASSED, FAILED, SKIPPED))


def report(group: str, outcomes: list[Outcome], *, verbose: bool) -> None:
    print(f"{group:<34} {counts(outcomes)}")
    for outcome in outcomes:
        if outcome.status == FAILED or (verbose and outcome.status == PASSED):
            print(f"    {outcome.status} {outcome.case} {outcome.detail}".rstrip())
    for reason, number in Counter(o.detail for o in outcomes if o.status == SKIPPED).items():
        print(f"    skipped {number}: {reason}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("-v", "--verbose", action="store_true", help="also list what passed")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the models are tiny, and the data were made with one thread
    everything: list[Outcome] = []
    for group, outcomes in check_folder(args.folder):
        report(group, outcomes, verbose=args.verbose)
        everything += outcomes
    if not everything:
        print(f"{args.folder}: no golden data (expected <folder>/<file>.json)")
        return 1
    print(counts(everything))
    return int(any(outcome.status == FAILED for outcome in everything))


if __name__ == "__main__":
    sys.exit(main())
