"""Train a small draft for a target, on answers that the target itself writes.

    python scripts/train_draft.py model=smollm2 data=local data.dir=FOLDER corpus.instructions=FILE

Keys are in conf/train_draft.yaml. Started again, it continues where it was stopped; stage=data or stage=train does one
part. The draft is used with: python run.py method=sps model.draft=FOLDER_THAT_IS_PRINTED
"""

from __future__ import annotations

import argparse
import logging
import sys

from specbench.config import compose_train_draft
from specbench.config.script import exit_code
from specbench.config.words import portable
from specbench.training.draft import DraftTraining


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="as for run.py: group=choice and key=value")
    overrides = parser.parse_args().overrides
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    command = portable(["python", "scripts/train_draft.py", *overrides])
    return exit_code(lambda: trained(overrides, command))


def trained(overrides: list[str], command: str) -> int:
    """Do what is left of the training and say where the draft is."""
    folder = DraftTraining(compose_train_draft(overrides), command).run()
    if (folder / "draft.safetensors").is_file():
        print(f"draft ready: model.draft={folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
