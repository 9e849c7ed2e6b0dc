"""Every figure, the experiments that feed it, and drawing all that there is data for."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from specbench.analysis.sweep_tables import SWEEPS
from specbench.figures.base import NotEnoughData
from specbench.figures.save import Drawn, save
from specbench.results.frozen import Frozen

log = logging.getLogger(__name__)

# Module -> the experiments whose runs it is drawn from, each into a file of its own. Runs of no experiment that is
# named here or among the tables of SWEEPS (those of a folder of one's own) are drawn together, in every figure.
FIGURES: dict[str, tuple[str, ...]] = {
    "speedup_by_task": (
        "headline",
        "all_methods",
        "specbench_leaderboard",
        "knapspec_main",
        "confl_main",
        "pacer_main",
    ),
    "quality_pareto": ("headline", "all_methods"),
    "predicted_speedup": ("headline", "specbench_leaderboard"),
    "predicted_rate": ("knapspec_tpt_vs_throughput",),
    "time_breakdown": ("headline", "knapspec_main", "confl_overhead"),
    "acceptance_by_position": ("headline", "pacer_main"),
    "accepted_vs_drafted": ("headline", "confl_main", "pacer_main"),
    "draft_lengths": ("pacer_length_distribution", "pacer_ouroboros"),
    "stop_reasons": ("pacer_length_distribution", "pacer_ouroboros"),
    "gate_calibration": ("pacer_length_distribution",),
    "latency_fit": ("knapspec_latency_fit",),
    "skip_heatmap": ("headline", "knapspec_main", "longdoc"),
    "skipped_by_context": ("knapspec_decoupling", "longdoc"),
    "layer_confidence": ("confl_window", "confl_main"),
    "cumulative_speedup": ("confl_vs_swift_cumulative", "confl_window"),
    "sweep": ("confl_lambda", "confl_sensitivity", "pacer_block_size", "pacer_threshold", "longdoc"),
    "acceptance_by_cache": ("mla_budgets",),
    "mla_forest": ("mla_matched", "mla_budgets"),
    "reconstruction_error": ("mla_matched", "mla_budgets", "mla_train_params"),
}


class Part(NamedTuple):
    """A figure to draw: its module, the name of its files, and the rows it may use."""

    module: str
    name: str
    frozen: Frozen


class Outcome(NamedTuple):
    """What became of a part: the files, or why it could not be drawn (`error` None: there was too little data)."""

    part: Part
    files: Sequence[Path] = ()
    reason: str = ""
    error: Exception | None = None


def parts(frozen: Frozen, only: Sequence[str] = ()) -> Iterator[Part]:
    """The figures that a folder of results may hold; `only`: modules, all without any."""
    known = {experiment for experiments in FIGURES.values() for experiment in experiments}
    known |= {sweep.experiment for sweep in SWEEPS}
    there = {name for names in frozen.runs["experiments"] for name in names}
    alone = frozen.runs["experiments"].map(lambda names: not known & set(names)).astype(bool)
    others = frozen.where(frozen.runs[alone])
    for module, experiments in FIGURES.items():
        if only and module not in only:
            continue
        found = [name for name in experiments if name in there]
        yield from (Part(module, f"{module}-{name}", frozen.of(name)) for name in found)
        if len(others.runs) or not found:
            yield Part(module, module, others)


def draw(part: Part) -> Drawn:
    """Select and build one figure; NotEnoughData where there is too little to draw."""
    module: Any = importlib.import_module(f"specbench.figures.{part.module}")
    frame: pd.DataFrame = module.select(part.frozen)
    return Drawn(part.name, module.build(frame), frame)


def draw_all(frozen: Frozen, folder: Path, only: Sequence[str] = (), **origin: Any) -> Iterator[Outcome]:
    """Draw and save part after part; what fails is given back, so that the others are drawn all the same."""
    for part in parts(frozen, only):
        try:
            drawn = draw(part)
            yield Outcome(part, save(drawn, folder, frozen.runs, origin))
        except NotEnoughData as missing:
            yield Outcome(part, reason=str(missing))
        except Exception as error:  # a figure that breaks must not cost the others
            log.debug("%s", part.name, exc_info=True)
            yield Outcome(part, reason=f"{type(error).__name__}: {error}", error=error)
