"""Prepare the embedded model (SmolLM2-135M-Instruct) in the cache folder; does nothing where it is ready."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from specbench.models.prepare import prepare_embedded
from specbench.types import SpecbenchError


def main() -> int:
    default = Path(os.environ.get("SPECBENCH_CACHE", "~/.cache/specbench"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache-dir", type=Path, default=default, help="default: $SPECBENCH_CACHE or %(default)s")
    cache_dir = parser.parse_args().cache_dir.expanduser()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        print(f"embedded model ready: {prepare_embedded(cache_dir)}")
    except SpecbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
