"""The latency curve t(T) of a forward pass with T new tokens: measured, checked against itself, cached."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from specbench.hardware.json_file import digest, read_if_usable
from specbench.results.files import make_folder, write_json

log = logging.getLogger(__name__)

LENGTHS = (1, 2, 4, 8, 11, 16, 32, 64, 128)
AGREEMENT = 0.2  # two passes must agree within this share at every length
MAX_REPEATS = 2


@dataclass(frozen=True)
class VerifyCurve:
    """Seconds of a forward pass per number of new tokens; `noisy` when no two passes in a row agreed."""

    seconds: Mapping[int, float]
    noisy: bool = False

    def times(self, factor: float) -> VerifyCurve:
        """The same shape, `factor` times as long."""
        return VerifyCurve({length: factor * value for length, value in self.seconds.items()}, self.noisy)


def verify_curve(
    step: Callable[[int], None],
    lengths: Sequence[int] = LENGTHS,
    *,
    repeats: int = 5,
    clock: Callable[[], float] = time.perf_counter,
    synchronize: Callable[[], None] = lambda: None,
) -> VerifyCurve:
    """Median seconds of `step(T)` per T; the lengths take turns, so that drift of the machine hits all alike.

    A second pass must agree within 20 % at every length; else the pass is repeated, at most twice.
    """

    def once(length: int) -> float:
        synchronize()
        start = clock()
        step(length)
        synchronize()
        return clock() - start

    def one_pass() -> dict[int, list[float]]:
        rounds = [[once(length) for length in lengths] for _ in range(repeats)]
        return {length: [row[column] for row in rounds] for column, length in enumerate(lengths)}

    for length in lengths:
        step(length)  # first calls allocate and pick kernels
    previous = one_pass()
    for _ in range(1 + MAX_REPEATS):
        latest = one_pass()
        agreed = _agree(previous, latest)
        both = {length: median(previous[length] + latest[length]) for length in lengths}
        if agreed:
            return VerifyCurve(both)
        previous = latest
    log.warning("the latency curve did not settle: passes differ by more than %.0f %%", 100 * AGREEMENT)
    return VerifyCurve(both, noisy=True)


def seconds(curve: VerifyCurve, num_tokens: float) -> float:
    """Seconds for `num_tokens` new tokens: linear between measured lengths, along the end segments outside."""
    points = sorted(curve.seconds.items())
    if len(points) == 1:
        return points[0][1]
    right = next((i for i, (length, _) in enumerate(points) if length >= num_tokens), len(points) - 1)
    (x0, y0), (x1, y1) = points[max(right, 1) - 1], points[max(right, 1)]
    return y0 + (y1 - y0) * (num_tokens - x0) / (x1 - x0)


def load_curve(folder: Path, key: Mapping[str, Any]) -> VerifyCurve | None:
    """The stored curve of `key` (model, dtype, threads, CPU, versions, ...), or None."""
    stored = read_if_usable(_file(folder, key))
    if not stored:
        return None
    return VerifyCurve({int(length): float(value) for length, value in stored["seconds"].items()}, stored["noisy"])


def store_curve(folder: Path, key: Mapping[str, Any], curve: VerifyCurve) -> Path:
    """Write `curve` under the hash of `key` and return the file."""
    path = _file(folder, key)
    make_folder(folder)
    write_json(path, {"key": dict(key), "seconds": dict(curve.seconds), "noisy": curve.noisy})
    return path


def _file(folder: Path, key: Mapping[str, Any]) -> Path:
    return folder / f"verify_curve-{digest(key)}.json"


def _agree(first: Mapping[int, Sequence[float]], second: Mapping[int, Sequence[float]]) -> bool:
    pairs = [(median(first[length]), median(second[length])) for length in first]
    return all(abs(a - b) <= AGREEMENT * min(a, b) for a, b in pairs)
