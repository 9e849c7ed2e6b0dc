"""Find the sublayers of a model that drafting can do without for a task, and store them with how they were found.

    python scripts/search_layers.py method=swift task=gsm8k data=local data.dir=FOLDER method.skip_ratio=0.15
    python run.py method=swift method.skip_set=FILE          # drafts with that set and searches no more

Takes the words of run.py. Samples are held out: a train split, or texts of this project that nothing is measured on.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specbench.config import RunConfig, compose
from specbench.config.script import exit_code
from specbench.config.words import portable
from specbench.methods.skip_search import SHIPPED
from specbench.methods.skip_sets import store_set
from specbench.runner.layer_search import check, check_searches, search
from specbench.runner.planning import make_task, ordered_samples
from specbench.runner.session import Session, on_device


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="as for run.py; num_samples are searched on")
    parser.add_argument("--check", type=int, default=2, help="further samples that the found set is measured on")
    parser.add_argument("--out", type=Path, default=SHIPPED, help="folder of the stored set (default: %(default)s)")
    options = parser.parse_intermixed_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    return exit_code(
        lambda: print(find(options.overrides, options.check, options.out)), interrupted="no set was stored"
    )


def find(overrides: Sequence[str], num_check: int, out: Path) -> Path:
    """Search, measure, store; gives the file."""
    config = on_device(compose(["method=swift", "logger=none", *overrides]))
    check_searches(config.method)
    config = dataclasses.replace(config, num_samples=(config.num_samples or 8) + num_check)
    samples = ordered_samples(config, make_task(config, "train"))
    searched, checked = samples[: len(samples) - num_check], samples[len(samples) - num_check :]
    session = Session(config)
    found = search(session, searched)
    card = {**_origin(config, session, overrides), **found.card(), "check": check(session, found.skip, checked)}
    name = f"{config.model.name}-{config.method.name}-{config.task.name}.json"
    return store_set(out / name, found.skip, model=session.model.revision, card=card)


def _origin(config: RunConfig, session: Session, overrides: Sequence[str]) -> dict[str, Any]:
    """Who found it, on what and how; folders of one machine mean nothing elsewhere."""
    machine = session.environment()
    return {
        "model_name": session.model.name,
        "method": config.method.name,
        "task": config.task.name,
        "data": f"{config.data.source}, held-out samples, {config.num_samples} with those of the check",
        "command": portable(["python", "scripts/search_layers.py", *overrides]),
        "git": machine["git"],
        "torch": machine["versions"]["torch"],
        "cpu": machine["cpu"]["model"],
        "num_threads": session.num_threads,
        "dtype": config.hardware.dtype,
        "seed": config.seed,
    }


if __name__ == "__main__":
    sys.exit(main())
