"""Times the passes of a decoder that its latency model is fitted to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from specbench.decoding.target import Target
from specbench.hardware.latency import Kind, LatencyModel, ProfilePlan, fit, interleaved
from specbench.models.decoder import Decoder
from specbench.models.kv_cache import KVCache

_BRANCHES, _ROWS = 8, 16  # of the batches that stand for a search
_PER_CALL = _BRANCHES * _ROWS


def profile(
    target: Target, plan: ProfilePlan, *, synchronize: Callable[[], None] = lambda: None
) -> tuple[LatencyModel, dict[Any, float]]:
    """The latency model of a target, and the median seconds of every timed pass.

    What the cache holds does not change how long a pass takes, so it is left as it comes.
    """
    decoder = target.decoder
    target.reserve(max(plan.lengths) + _ROWS)
    layers, cache = decoder.spec.num_layers, target.cache
    passes = {kind: partial(_pass, decoder, cache, kind, _left_out(kind, layers)) for kind in plan.kinds(layers)}
    batches = {
        ("rows", index, context): partial(_batch, decoder, cache, index, context) for index, context in _batches(plan)
    }
    head = {("rows", "head", 0): partial(_head, decoder)}
    with torch.inference_mode():
        times, noisy = interleaved({**passes, **batches, **head}, plan, synchronize=synchronize)
    model = fit({kind: times[kind] for kind in passes}, layers)
    return replace(_with_rows(model, times, plan), noisy=noisy), times


def _batches(plan: ProfilePlan) -> list[tuple[int, int]]:
    short, long = min(plan.lengths), max(plan.lengths)
    return [(0, short), (0, long), (1, short)]


def _with_rows(model: LatencyModel, times: dict[Any, float], plan: ProfilePlan) -> LatencyModel:
    """Seconds a row of the batched calls; attention's line over context goes through its two points."""
    short, long = min(plan.lengths), max(plan.lengths)
    near, far = times["rows", 0, short] / _PER_CALL, times["rows", 0, long] / _PER_CALL
    slope = max(0.0, far - near) / (long - short)
    return replace(
        model,
        attention_row_slope=slope,
        attention_row_base=max(0.0, near - slope * short),
        mlp_row=times["rows", 1, short] / _PER_CALL,
        head_row=times["rows", "head", 0] / _PER_CALL,
    )


def _left_out(kind: Kind, num_layers: int) -> frozenset[int]:
    """Sublayers that a pass of this kind skips: spread over the model, as skip sets are."""

    def spread(kept: int) -> set[int]:
        taken = {round((place + 0.5) * num_layers / kept - 0.5) for place in range(kept)} if kept else set()
        return set(range(num_layers)) - taken

    attention, mlp = spread(kind.attention), spread(kind.mlp)
    return frozenset({2 * layer for layer in attention} | {2 * layer + 1 for layer in mlp})


def _pass(decoder: Decoder, cache: KVCache, kind: Kind, skip: frozenset[int]) -> None:
    """One token through what the kind leaves in; its id is read back, as a draft's is."""
    out = decoder.forward(
        _ids(decoder, 1, 1), cache, start=kind.context, skip=skip, logits="last" if kind.head else "none"
    )
    if out.logits is not None:
        int(out.logits[0, -1].argmax())


def _batch(decoder: Decoder, cache: KVCache, index: int, context: int) -> None:
    decoder.sublayer(index, decoder.embed(_ids(decoder, _BRANCHES, _ROWS)), cache, context)


def _head(decoder: Decoder) -> None:
    decoder.head(decoder.final_norm(decoder.embed(_ids(decoder, 1, _PER_CALL)))).argmax(-1)


def _ids(decoder: Decoder, *shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64, device=decoder.device)
