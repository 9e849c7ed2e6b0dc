"""Measure on this machine what a model's forward passes cost, and store it for later runs.

    python scripts/profile_hardware.py model=smollm2 hardware.dtype=bfloat16

Takes the words of run.py; measures t(T) and, for the lengths of method.profile_lengths, the parts of a pass.
"""

from __future__ import annotations

import argparse
import logging
import sys

from specbench.config import KnapspecConfig, compose
from specbench.config.script import exit_code
from specbench.hardware.latency import ProfilePlan, describe
from specbench.runner.session import Session, on_device
from specbench.types import ConfigError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="as for run.py")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    overrides = parser.parse_args().overrides
    return exit_code(lambda: measure(overrides), interrupted="nothing was stored")


def measure(overrides: list[str]) -> None:
    """Measure again, whatever the cache holds, and say what came out."""
    config = on_device(compose(["method=knapspec", *overrides]))
    method = config.method
    if not isinstance(method, KnapspecConfig):
        raise ConfigError(f"method={method.name}: has no method.profile_lengths. Legal: knapspec, knapspec_official")
    plan = ProfilePlan(tuple(method.profile_lengths), method.profile_warmup, method.profile_iters)
    session = Session(config)
    model = session.latency(plan, again=True)
    print(describe(model, plan.lengths, session.model.spec.num_layers))


if __name__ == "__main__":
    sys.exit(main())
