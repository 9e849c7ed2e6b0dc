"""What leaving sublayers out saves, and whether the cost model knows it."""

from __future__ import annotations

import functools
import random
from collections.abc import Collection, Sequence
from statistics import median

import torch

from specbench.hardware.latency import MARGIN
from specbench.methods.draft_plan import CostModel
from specbench.methods.layer_skip import layers_to_sublayers

from .measure import Bound, Figure, Medians, figure, in_turns, timed
from .search import optimiser
from .stage import Settings, Stage

EVERY_OTHER = Bound("<=", 0.60)  # of a full step
CONTEXT = 200
_STEP_FACTOR = 3  # single passes are short: measured this many times as often


def skipping(stage: Stage, settings: Settings) -> list[Figure]:
    """A draft step without every other layer against a full one, and predicted against measured times of skip sets."""
    costs = optimiser(stage).costs  # measured before anything else is timed
    layers = stage.decoder.spec.num_layers
    stage.target.noise(CONTEXT + MARGIN)
    half = layers_to_sublayers(range(1, layers, 2))
    sets = random_sets(settings.skip_sets, layers)
    actions = {
        "full": functools.partial(draft_step, stage, frozenset()),
        "half": functools.partial(draft_step, stage, half),
        **{str(number): functools.partial(draft_step, stage, skip) for number, skip in enumerate(sets)},
    }
    samples = in_turns(actions, _STEP_FACTOR * settings.rounds)
    return [*_half_step(samples, half), *_errors(samples, sets, costs)]


@torch.inference_mode()
def draft_step(stage: Stage, skip: Collection[int]) -> float:
    """Seconds of one token through what is left, its id read back."""
    token = torch.zeros(1, 1, dtype=torch.int64)

    def step() -> int:
        out = stage.decoder.forward(token, stage.target.cache, start=CONTEXT, skip=skip, logits="last")
        assert out.logits is not None
        return int(out.logits[0, -1].argmax())

    return timed(step)


def random_sets(count: int, num_layers: int) -> list[frozenset[int]]:
    """Sets of every size: from one sublayer to all but those of the first and the last layer."""
    chance, inner = random.Random(0), range(2, 2 * num_layers - 2)
    return [frozenset(chance.sample(inner, chance.randint(1, len(inner)))) for _ in range(count)]


def _half_step(samples: dict[str, list[float]], half: Collection[int]) -> list[Figure]:
    detail = {"skipped": f"{len(half) // 2} layers", "context": CONTEXT}
    return [
        figure("full step", samples, lambda m: 1e3 * m["full"], unit="ms"),
        figure("draft step without layers 1, 3, 5, ..", samples, lambda m: 1e3 * m["half"], unit="ms", detail=detail),
        figure("draft step over full step", samples, lambda m: m["half"] / m["full"], unit="x", required=EVERY_OTHER),
    ]


def _errors(samples: dict[str, list[float]], sets: Sequence[frozenset[int]], costs: CostModel) -> list[Figure]:
    predicted = {str(number): costs.draft(CONTEXT, skip) for number, skip in enumerate(sets)}
    predicted["full"] = costs.draft(CONTEXT, frozenset())

    def errors(medians: Medians) -> list[float]:
        return [100.0 * abs(predicted[str(n)] / medians[str(n)] - 1.0) for n in range(len(sets))]

    detail = {"sets": len(sets), "profile_noisy": costs.latency.noisy}
    return [
        figure("error of the cost model, median", samples, lambda m: median(errors(m)), unit="%", detail=detail),
        figure("error of the cost model, largest", samples, lambda m: max(errors(m)), unit="%"),
        figure("predicted over measured full step", samples, lambda m: predicted["full"] / m["full"], unit="x"),
    ]
