"""Make a PACER-style gate: collect speculation on held-out prompts, fit it, choose block size and thresholds.

    python scripts/train_pacer.py model=tiny method=pacer task=gsm8k data=local data.dir=FOLDER num_samples=200
    python scripts/train_pacer.py model=smollm2 method=pacer_ouroboros num_samples=300 --prompts FILE.jsonl

Takes the words of run.py. Prompts are held out: the task's train split, or what --prompts names. The gate is stored
in paths.cache_dir/controllers, where method=pacer finds it for the same pair and setting.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from specbench.config import compose
from specbench.config.script import exit_code
from specbench.config.words import portable
from specbench.runner.controller_training import held_out_rollouts
from specbench.runner.pacer_training import pacer_of, train_pacer
from specbench.runner.session import Session, on_device
from specbench.training.gate import GATE_OPTIONS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="as for run.py; num_samples prompts are used")
    parser.add_argument(
        "--prompts", type=Path, help="JSONL with `prompt`, or `instruction` and `instances`; mix = several kinds"
    )
    parser.add_argument("--num-draft-tokens", type=int, default=32, help="drafted in every step (default: %(default)s)")
    parser.add_argument("--steps", type=Path, help="where collected steps are kept; used again when the file is there")
    parser.add_argument("--lr", type=float, default=GATE_OPTIONS.lr, help="learning rate (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=GATE_OPTIONS.epochs, help="(default: %(default)s)")
    parser.add_argument("--out", type=Path, help="folder of the stored gate")
    options = parser.parse_intermixed_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    return exit_code(lambda: print(fit(options, sys.argv[1:])), interrupted="nothing is stored but what --steps named")


def fit(options: argparse.Namespace, words: Sequence[str]) -> Path:
    """Collect, fit, tune, store; gives the card, which quotes the `words` of the command line."""
    config = on_device(compose(["method=pacer", "logger=none", *options.overrides]))
    chosen = pacer_of(config)
    session = Session(config)
    data = held_out_rollouts(
        config, session, prompts=options.prompts, num_draft_tokens=options.num_draft_tokens, kept=options.steps
    )
    fit_options = dataclasses.replace(GATE_OPTIONS, lr=options.lr, epochs=options.epochs)
    part = train_pacer(config, session, data, fit_options)
    command = portable(["python", "scripts/train_pacer.py", *words])
    card = {**part.card, "command": command, "git": session.environment()["git"]}
    name = "-".join(
        ["pacer", chosen.feature, chosen.label, config.model.name, config.method.name, config.hardware.dtype]
    )
    return dataclasses.replace(part, card=card).save((options.out or session.artefact_folder) / f"{name}.json")


if __name__ == "__main__":
    sys.exit(main())
