"""Download models and data sets of the Hugging Face Hub now, so that runs need no network later.

Afterwards set HF_HUB_OFFLINE=1, or copy the Hub's cache folder ($HF_HOME) to the machine without a network.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from specbench.models.source import resolve
from specbench.types import SpecbenchError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", default=[], metavar="ID[@REVISION]", help="repeat for more")
    parser.add_argument("--dataset", action="append", default=[], metavar="ID[@REVISION]", help="repeat for more")
    parser.add_argument("--cache-dir", type=Path, default=Path(os.environ.get("SPECBENCH_CACHE", "~/.cache/specbench")))
    args = parser.parse_args()
    if not args.model and not args.dataset:
        parser.error("name at least one --model or --dataset")
    failed = [name for name in args.model if not _model(name, args.cache_dir.expanduser())]
    failed += [name for name in args.dataset if not _dataset(name)]
    return 2 if failed else 0


def _model(name: str, cache_dir: Path) -> bool:
    source, _, revision = name.partition("@")
    try:
        found = resolve(source, cache_dir=cache_dir, revision=revision or None)
    except SpecbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return False
    print(f"model {found.name} at {found.revision}: {found.folder}")
    return True


def _dataset(name: str) -> bool:
    import huggingface_hub

    source, _, revision = name.partition("@")
    try:
        folder = huggingface_hub.snapshot_download(source, repo_type="dataset", revision=revision or None)
    except Exception as error:  # network, access and names fail in many ways; the next name may still work
        print(f"error: cannot fetch data set {source}: {error}", file=sys.stderr)
        return False
    print(f"data set {source} at {Path(folder).name}: {folder}")
    return True


if __name__ == "__main__":
    sys.exit(main())
