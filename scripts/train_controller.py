"""Fit a controller to a pair of models: a fixed length, a classifier over scalars, or SpecDec++'s head.

    python scripts/train_controller.py tuned model=tiny method=sps task=gsm8k data=local data.dir=FOLDER num_samples=50
    python scripts/train_controller.py scalars model=tiny method=sps task=gsm8k num_samples=200 --prompts FILE.jsonl

Takes the words of run.py. Prompts are held out: the task's train split, or what --prompts names. The part is stored
in paths.cache_dir/controllers, where method/controller=tuned (or scalars, specdecpp) finds it for the same pair.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specbench.config import compose
from specbench.config.controllers import STATES
from specbench.config.script import exit_code
from specbench.config.words import portable
from specbench.runner.controller_training import KINDS, held_out_rollouts, train
from specbench.runner.session import Session, on_device


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("overrides", nargs="*", help="as for run.py; num_samples prompts are used")
    parser.add_argument(
        "--prompts", type=Path, help="JSONL with `prompt`, or `instruction` and `instances`; mix = several kinds"
    )
    parser.add_argument("--num-draft-tokens", type=int, default=20, help="drafted in every step (default: %(default)s)")
    parser.add_argument("--steps", type=Path, help="where collected steps are kept; used again when the file is there")
    parser.add_argument("--state", choices=STATES, default="own", help="specdecpp: whose state judges a token")
    parser.add_argument("--out", type=Path, help="folder of the stored part")
    options = parser.parse_intermixed_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    return exit_code(lambda: print(fit(options, sys.argv[1:])), interrupted="nothing is stored but what --steps named")


def fit(options: argparse.Namespace, words: Sequence[str]) -> Path:
    """Collect, fit, store; gives the card, which quotes the `words` of the command line."""
    config = on_device(compose(["method=sps", "method/controller=fixed", "logger=none", *options.overrides]))
    session = Session(config)
    data = held_out_rollouts(
        config, session, prompts=options.prompts, num_draft_tokens=options.num_draft_tokens, kept=options.steps
    )
    more: dict[str, Any] = {"state": options.state} if options.kind == "specdecpp" else {}
    part = train(options.kind, config, session, data, **more)
    machine = session.environment()
    command = portable(["python", "scripts/train_controller.py", *words])
    card = {**part.card, "command": command, "git": machine["git"]}
    name = "-".join([options.kind, *more.values(), config.model.name, config.method.name, config.hardware.dtype])
    return dataclasses.replace(part, card=card).save((options.out or session.artefact_folder) / f"{name}.json")


if __name__ == "__main__":
    sys.exit(main())
