"""How many CPU threads decode fastest: measured once for a results folder and machine, then shared by all jobs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import filelock
import psutil
import torch

from specbench.hardware.environment import cpu_model
from specbench.hardware.json_file import digest, read_if_usable
from specbench.results.files import make_folder, write_json

log = logging.getLogger(__name__)

ROUNDS = 4  # every candidate is measured this often, in turns; the better reading counts
MIN_GAIN = 0.02  # more threads must be this much faster, else fewer win


def physical_cores() -> int:
    """Physical cores that this process may use (affinity respected), at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def candidates(cores: int) -> list[int]:
    """Thread counts worth trying on `cores` cores: 1, 2, 3, 4, 6, 8, 12, 16, 24, ... and `cores` itself."""
    ladder = sorted({factor << power for factor in (1, 2, 3) for power in range(12)})
    return sorted({count for count in ladder if count <= cores} | {cores})


def choose_num_threads(measure: Callable[[int], float], *, path: Path) -> int:
    """The thread count with the least `measure(n)` (seconds), read from `path` when this machine is in it already.

    Jobs that start together wait for the one that measures.
    """
    cores = physical_cores()
    machine = {"cpu": cpu_model(), "cores": cores}
    make_folder(path.parent)
    with filelock.FileLock(path.with_name(path.name + ".lock")):
        known = read_if_usable(path)
        key = digest(machine)
        if key not in known:
            seconds = _measure(measure, candidates(cores))
            known[key] = {**machine, "num_threads": _fewest_fast(seconds), "seconds": seconds}
            write_json(path, known)
            log.info("decoding with %d CPU threads (measured; stored in %s)", known[key]["num_threads"], path)
        return int(known[key]["num_threads"])


def set_num_threads(count: int) -> None:
    """Use `count` threads inside an operator and one between operators."""
    torch.set_num_threads(count)
    if torch.get_num_interop_threads() != 1:
        # torch allows this once, before any parallel work; later it is harmless to leave it as it is.
        with suppress(RuntimeError):
            torch.set_num_interop_threads(1)


def _measure(measure: Callable[[int], float], counts: Sequence[int]) -> dict[int, float]:
    rounds = [{count: measure(count) for count in counts} for _ in range(ROUNDS)]
    return {count: min(readings[count] for readings in rounds) for count in counts}


def _fewest_fast(seconds: dict[int, float]) -> int:
    limit = min(seconds.values()) * (1.0 + MIN_GAIN)
    return min(count for count, value in seconds.items() if value <= limit)
