"""A command like run.py whose jobs only look at `seed`: what the real one does around a run, without a model."""

from __future__ import annotations

import os
import sys

import hydra
from omegaconf import DictConfig

from specbench.config import RunConfig, command, run_job
from specbench.config.errors import CONF_DIR
from specbench.types import SampleError


def measure(config: RunConfig) -> float | None:
    if config.seed == 1:
        raise SampleError("1 of 8 samples failed")
    if config.seed == 2:
        raise ValueError("a bug")
    if config.seed == 3:
        raise KeyboardInterrupt
    if config.seed == 4:
        return None
    if config.seed == 5:
        os._exit(9)  # what the out-of-memory killer does
    return 10.0 + config.seed


@hydra.main(version_base="1.3", config_path=str(CONF_DIR), config_name="config")
def main(cfg: DictConfig) -> float:
    return run_job(cfg, measure)


if __name__ == "__main__":
    sys.exit(command(main))
