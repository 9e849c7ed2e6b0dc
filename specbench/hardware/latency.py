"""What the parts of a one-token pass cost on this machine: attention grows with context, everything else is constant.

Whole passes with parts left out are timed in turns, and the parts' seconds are the non-negative least-squares fit to
them. A part timed alone would find its weights in the processor's cache, which it never does while decoding.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import nnls

from specbench.hardware.json_file import digest, read_if_usable
from specbench.hardware.monitor import load_now
from specbench.results.files import make_folder, write_json

log = logging.getLogger(__name__)

AGREEMENT = 0.2  # two passes must agree within this share for every kind
MAX_REPEATS = 2
MAX_LOAD = 0.5  # cores that others keep busy
MARGIN = 64  # positions that timed passes need beyond their context
_LEAST = 1e-3  # of a full pass: what a sublayer costs at least, where the fit says nothing


@dataclass(frozen=True)
class LatencyModel:
    """Seconds of one pass over one token: fixed + head + per layer attention(context) and MLP.

    `attention_row` (base and slope over context), `mlp_row` and `head_row` are seconds a row in large batches, as a
    search for skip sets runs them; 0 = not known. `noisy`: no two passes in a row agreed, or others used the machine.
    """

    attention_slope: float
    attention_base: float
    mlp: float
    head: float = 0.0
    fixed: float = 0.0
    attention_row_slope: float = 0.0
    attention_row_base: float = 0.0
    mlp_row: float = 0.0
    head_row: float = 0.0
    least: float = 1e-12  # no sublayer is taken to cost less
    noisy: bool = False

    def __post_init__(self) -> None:
        # A fit to short contexts may say nothing about a part, or give it a negative time.
        object.__setattr__(self, "mlp", max(self.mlp, self.least))

    def attention(self, context: int) -> float:
        """Seconds of one attention sublayer behind `context` cached tokens."""
        return max(self.attention_slope * context + self.attention_base, self.least)

    def full(self, context: int, num_layers: int) -> float:
        """Seconds of a pass of the whole model over one token."""
        return self.predicted(Kind(context, num_layers, num_layers))

    def predicted(self, kind: Kind) -> float:
        """Seconds of a pass of this kind over one token."""
        sublayers = kind.attention * self.attention(kind.context) + kind.mlp * self.mlp
        return self.fixed + self.head * kind.head + sublayers

    def attention_row(self, context: int) -> float:
        return self.attention_row_slope * context + self.attention_row_base


class Kind(NamedTuple):
    """A timed pass: how many layers' attention and MLP take part, at which context, with the output head or not."""

    context: int
    attention: int
    mlp: int
    head: bool = True


@dataclass(frozen=True)
class ProfilePlan:
    """Contexts at which full passes are timed, and how often every kind is (after `warmup` untimed calls)."""

    lengths: tuple[int, ...] = (128, 512, 1024, 2048)
    warmup: int = 3
    repeats: int = 20

    def within(self, max_positions: int) -> ProfilePlan:
        """The plan with lengths that a model of so many positions can hold; two at least, for the line."""
        longest = max(2, max_positions - MARGIN)
        lengths = {min(length, longest) for length in self.lengths}
        return replace(self, lengths=tuple(sorted(lengths if len(lengths) > 1 else {longest // 2, longest})))

    def kinds(self, num_layers: int) -> list[Kind]:
        """Full passes at every length, and passes without one kind of sublayer, without any, and without the head."""
        short, half = self.lengths[0], num_layers // 2
        return [
            *(Kind(length, num_layers, num_layers) for length in self.lengths),
            Kind(short, half, num_layers),
            Kind(self.lengths[-1], half, num_layers),
            Kind(short, num_layers, half),
            Kind(short, half, half),
            Kind(short, 0, 0),
            Kind(short, 0, 0, head=False),
        ]


def interleaved(
    timed: Mapping[Any, Callable[[], object]],
    plan: ProfilePlan,
    *,
    clock: Callable[[], float] = time.perf_counter,
    synchronize: Callable[[], None] = lambda: None,
    load: Callable[[], float] = load_now,
) -> tuple[dict[Any, float], bool]:
    """Median seconds of every callable, which take turns so that drift of the machine hits all alike; and whether
    they are noisy: a second pass must agree within 20 % on a machine that others leave alone, else it is repeated.
    """

    def once(step: Callable[[], object]) -> float:
        synchronize()
        start = clock()
        step()
        synchronize()
        return clock() - start

    def one_pass() -> dict[Any, float]:
        rounds = [[once(step) for step in timed.values()] for _ in range(plan.repeats)]
        return {key: median(row[column] for row in rounds) for column, key in enumerate(timed)}

    for step in timed.values():
        for _ in range(plan.warmup):
            step()
    load()
    previous = one_pass()
    for _ in range(1 + MAX_REPEATS):
        latest = one_pass()
        agreed = all(abs(latest[k] - previous[k]) <= AGREEMENT * min(latest[k], previous[k]) for k in timed)
        both = {key: (latest[key] + previous[key]) / 2 for key in timed}
        if agreed and load() <= MAX_LOAD:
            return both, False
        previous = latest
    log.warning("the latency profile did not settle: its passes differ by more than 20 %, or other work was running")
    return both, True


def fit(times: Mapping[Kind, float], num_layers: int) -> LatencyModel:
    """The model whose parts, none negative, explain the passes best (relative errors count alike)."""
    kinds = list(times)
    scale = max(kind.context for kind in kinds)  # brings the columns to a like size
    design = np.array(
        [[k.attention * k.context / scale, k.attention, k.mlp, float(k.head), 1.0] for k in kinds], dtype=float
    )
    target = np.array([times[kind] for kind in kinds])
    slope, base, mlp, head, fixed = nnls(design / target[:, None], np.ones(len(kinds)))[0]
    least = _LEAST * float(target.max()) / num_layers
    return LatencyModel(
        attention_slope=float(slope) / scale,
        attention_base=float(base),
        mlp=float(mlp),
        head=float(head),
        fixed=float(fixed),
        least=least,
    )


def load_latency(folder: Path, key: Mapping[str, Any]) -> LatencyModel | None:
    """The stored model of `key` (model, dtype, threads, CPU, versions, plan, ...), or None."""
    stored = read_if_usable(_file(folder, key))
    return _model(stored) if stored else None


def _model(stored: Mapping[str, Any]) -> LatencyModel:
    known = {field.name for field in fields(LatencyModel)}
    return LatencyModel(**{name: value for name, value in stored["model"].items() if name in known})


def latency_record(folder: Path, key: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a run keeps of the profile that it used: key, model, and every timed pass beside what the model says.

    A pass has the fields of Kind, `seconds`, `fitted_s`, and the model's `attention_s` and `mlp_s` of one layer there.
    """
    stored = read_if_usable(_file(folder, key))
    if not stored:
        return None
    model = _model(stored)
    timed = [(entry["kind"], entry["seconds"]) for entry in stored.get("times", [])]
    passes = [_pass(model, Kind(*kind), seconds) for kind, seconds in timed if _is_pass(kind)]
    return {"profile": digest(key), "key": dict(key), "model": asdict(model), "passes": passes}


def _is_pass(kind: Any) -> bool:
    return isinstance(kind, list) and kind[0] != "rows"


def _pass(model: LatencyModel, kind: Kind, seconds: float) -> dict[str, Any]:
    says = {
        "fitted_s": model.predicted(kind),
        "attention_s": model.attention(kind.context),
        "mlp_s": model.mlp,
    }
    return {**kind._asdict(), "seconds": seconds, **says}


def store_latency(
    folder: Path, key: Mapping[str, Any], model: LatencyModel, times: Mapping[Any, float] | None = None
) -> Path:
    """Write `model` and the seconds it was fitted to under the hash of `key`, and return the file."""
    path = _file(folder, key)
    make_folder(folder)
    seconds = [
        {"kind": list(kind) if isinstance(kind, tuple) else kind, "seconds": s} for kind, s in (times or {}).items()
    ]
    write_json(path, {"key": dict(key), "model": asdict(model), "times": seconds})
    return path


def _file(folder: Path, key: Mapping[str, Any]) -> Path:
    return folder / f"latency-{digest(key)}.json"


def describe(model: LatencyModel, lengths: Sequence[int], num_layers: int) -> str:
    """A few lines for people: the parts in microseconds, and a whole pass at some contexts."""
    parts = (
        f"attention {1e6 * model.attention_base:.1f} us + {1e9 * model.attention_slope:.2f} ns a token of context, "
        f"MLP {1e6 * model.mlp:.1f} us, head {1e6 * model.head:.0f} us, fixed {1e6 * model.fixed:.0f} us a pass"
    )
    passes = ", ".join(f"{n}: {1e3 * model.full(n, num_layers):.2f} ms" for n in lengths)
    return f"{parts}\nwhole passes at context {passes}" + ("\nNOISY: the machine was not quiet" if model.noisy else "")
