"""Run one job or a sweep: `python run.py method=pld task=gsm8k`; `python run.py --help` lists the choices."""

from __future__ import annotations

import sys

import hydra
from omegaconf import DictConfig

from specbench.config import RunConfig, command, is_known, run_job


def measure(config: RunConfig) -> float | None:
    """Run one job; torch is imported here and no earlier, so that --help and tab completion stay fast.

    A model that cannot be had is told before that, unless the job may be done already.
    """
    from specbench.models.hub import check_hub

    if not (config.dry_run or is_known(config)):
        check_hub(config.model.sources, needed=config.needed_models)
    from specbench.runner import run

    objective: float | None = run(config)
    return objective


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg: DictConfig) -> float:
    """One job as Hydra sees it: gives the objective to a sweeper (NaN where there is none)."""
    return run_job(cfg, measure)


if __name__ == "__main__":
    sys.exit(command(main))
