"""KnapSpec's search against the matrix products it consists of, and what thinner searches save and lose."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import mean

import numpy as np
import torch

from specbench.decoding.target import Target
from specbench.methods.draft_plan import acceptance_rates, first_best, tokens_per_time
from specbench.methods.knapsack import FIRST, Candidates, Window, search, top1
from specbench.methods.knapspec_search import Decision, Effort, Optimiser
from specbench.models.decoder import Decoder
from specbench.models.spec import ModelSpec
from specbench.types import Draft, Needs

from .measure import Bound, Figure, Medians, figure, in_turns, timed
from .speed import linear_calls
from .stage import PrefilledTarget, Settings, Stage

OVER_FLOOR = Bound("<=", 1.4)
_RATE_LAYERS = 3  # so many layers' products are timed together, so that their weights do not stay in the caches
_RATE_POINTS = 6  # row counts at which the rate is measured; in between it is interpolated

# A search that drafts whatever it finds: what plain decoding would win over is not the question here.
ALWAYS_DRAFTS = ("method.min_gain=0", "method.include_no_skip_candidate=false", "method.planned_length_min=1")


@dataclass(frozen=True)
class Thinning:
    """A cheaper search: share of the rows, most branches a sublayer, and the cosine below which a cell is dropped."""

    name: str
    rows: float = 1.0
    branches: int | None = None
    threshold: float | None = None


THINNED = (
    Thinning("half the rows", rows=0.5),
    Thinning("16 budgets a sublayer", branches=16),
    Thinning("8 budgets a sublayer", branches=8),
    Thinning("4 budgets a sublayer", branches=4),
    Thinning("pruning at cosine 0.9", threshold=0.9),
    Thinning("half the rows, 8 budgets", rows=0.5, branches=8),
)


@dataclass(frozen=True)
class Case:
    """Rows that the whole model has verified, ready to be searched."""

    target: Target
    window: Window

    @property
    def context(self) -> int:
        return self.target.cache.length


def optimiser(stage: Stage, *overrides: str) -> Optimiser:
    """The optimiser of `method=knapspec`, which never prefers plain decoding."""
    generator = stage.generator("knapspec", *ALWAYS_DRAFTS, *overrides)
    found: Optimiser = generator.drafter.optimiser  # type: ignore[attr-defined]
    return found


@torch.inference_mode()
def verified(stage: Stage, prompt: Sequence[int], rows: int) -> Case:
    """The model's own `rows` tokens after `prompt`, verified at once; the context is len(prompt) - 1 + rows."""
    answer = stage.generator("ar").generate(prompt, max_new_tokens=rows, seed=0)
    target, after = PrefilledTarget(stage.decoder, stage.prefixes), tuple(range(1, stage.decoder.num_sublayers))
    target.prefill(prompt, capacity=len(prompt) + 2 * rows)
    draft = Draft(tokens=torch.tensor(answer.tokens[: rows - 1], dtype=torch.int64), spine=rows - 1)
    seen = target.verify(prompt[-1], draft, Needs(residuals=after), greedy=True)
    target.cache.keep(range(rows))
    return Case(target, Window(torch.stack([seen.residuals[index] for index in after]), len(prompt) - 1))


def optimisation(stage: Stage, settings: Settings) -> list[Figure]:
    """Seconds of one full optimisation and of its products, and of thinner ones with what their choices are worth."""
    chooser, rows = optimiser(stage), settings.search_rows
    prompts = [stage.prompt(settings.search_context - rows + 1)]
    prompts += [stage.encode(sample) for _, sample in stage.mixture(settings.search_prompts - 1)]
    cases = [verified(stage, prompt, rows) for prompt in prompts]
    stage.prefixes.clear()
    return [*against_floor(stage, chooser, cases[0], settings), *thinned(chooser, cases, settings)]


def against_floor(stage: Stage, chooser: Optimiser, case: Case, settings: Settings) -> list[Figure]:
    """The full search on one window, in turns with the model's own products at several of its row counts."""
    with torch.inference_mode():
        found = search(stage.decoder, case.target.cache, case.window, chooser.problem(case.context))
    calls = work(stage.decoder.spec, found, case)
    counts = sorted({round(n) for n in np.linspace(*_ends(rows for rows, _ in calls), _RATE_POINTS)})
    actions: dict[str, Callable[[], float]] = {"search": functools.partial(_seconds, chooser, case, Thinning("full"))}
    actions |= {str(count): functools.partial(products, stage.decoder, count) for count in counts}
    samples = in_turns(actions, max(2, settings.rounds // 2))
    per_row = 2.0 * _RATE_LAYERS * sum(_layer_weights(stage.decoder.spec))

    def floor(medians: Medians) -> float:
        rates = [per_row * count / medians[str(count)] for count in counts]
        return sum(flops / float(np.interp(rows, counts, rates)) for rows, flops in calls)

    detail = {"rows": case.window.rows, "context": case.context, "cells": found.evaluations, "candidates": len(found)}
    gigaflop = sum(flops for _, flops in calls) / 1e9
    return [
        figure("one full optimisation", samples, lambda m: m["search"], unit="s", detail=detail),
        figure("its products at the measured rates", samples, floor, unit="s", detail={"GFLOP": gigaflop}),
        *(
            figure(f"rate at {count} rows", samples, lambda m, n=count: per_row * n / m[str(n)] / 1e9, unit="GFLOP/s")
            for count in (counts[0], counts[-1])
        ),
        figure(
            "full optimisation over its products",
            samples,
            lambda m: m["search"] / floor(m),
            unit="x",
            required=OVER_FLOOR,
        ),
    ]


def work(spec: ModelSpec, found: Candidates, case: Case) -> list[tuple[int, float]]:
    """(rows, FLOPs) of every product call of a search: each sublayer on its cells, then the head on the candidates."""
    rows = case.window.rows
    attention, mlp = _layer_weights(spec)
    scores = 4.0 * case.context * spec.num_heads * spec.head_dim
    calls = []
    for index, cells in enumerate([1, *map(len, found.rows[:-1])], start=FIRST):
        per_row = 2.0 * mlp if index % 2 else 2.0 * attention + scores
        calls.append((cells * rows, cells * rows * per_row))
    return [*calls, (len(found) * rows, 2.0 * len(found) * rows * spec.hidden_size * spec.vocab_size)]


@torch.inference_mode()
def products(decoder: Decoder, rows: int) -> float:
    """Seconds of the linear layers of a few layers on so many rows."""
    calls = linear_calls(decoder, rows, decoder.embed(torch.zeros(1, 1, dtype=torch.int64)).dtype)[: 4 * _RATE_LAYERS]
    return timed(lambda: [call() for call in calls])


def thinned(chooser: Optimiser, cases: Sequence[Case], settings: Settings) -> list[Figure]:
    """Time of each thinner search over the full one's, and how much less per time its choice is predicted to give."""
    variants = (Thinning("full"), *THINNED)
    actions = {v.name: functools.partial(_seconds, chooser, cases[0], v) for v in variants}
    samples = in_turns(actions, max(2, settings.rounds // 4))
    values = {v.name: [worth(chooser, case, choose(chooser, case, v).skip) for case in cases] for v in variants}
    figures = []
    for variant in variants[1:]:
        lost = [100.0 * (1.0 - thin / full) for thin, full in zip(values[variant.name], values["full"], strict=True)]
        detail = {"loss_%": mean(lost), "largest_loss_%": max(lost), "windows": len(cases)}
        ratio = functools.partial(_over, variant.name, "full")
        figures.append(figure(f"time over full: {variant.name}", samples, ratio, unit="x", detail=detail))
    return figures


def choose(chooser: Optimiser, case: Case, variant: Thinning) -> Decision:
    """What a search of this thinning decides on a window."""
    if variant.threshold is not None:
        chooser = replace(chooser, options=replace(chooser.options, sim_threshold=variant.threshold))
    effort = Effort(max(1, round(variant.rows * case.window.rows)), variant.branches, 0.0)
    with torch.inference_mode():
        return chooser(case.target.cache, case.window, effort)


def worth(chooser: Optimiser, case: Case, skip: Collection[int] | None) -> float:
    """Predicted tokens per second of drafting with a set, by its agreement on the whole window; plain without one."""
    costs, options = chooser.costs, chooser.options
    if skip is None:
        return costs(case.context, [], 0).plain_rate
    alpha = acceptance_rates([agreement(chooser.decoder, case, skip)], case.window.rows, options.alpha_estimate)
    rates = tokens_per_time(alpha, costs(case.context, [frozenset(skip)], options.planned_length_max))
    rate = first_best(rates, (options.planned_length_min, options.planned_length_max)).rate
    assert rate is not None
    return rate


@torch.inference_mode()
def agreement(decoder: Decoder, case: Case, skip: Collection[int]) -> int:
    """At how many window rows the model without `skip` names the whole model's next token; first layer kept."""
    states = case.window.after(FIRST - 1)[None]
    for index in range(FIRST, decoder.num_sublayers):
        if index not in skip:
            states = states + decoder.sublayer(index, states, case.target.cache, case.window.start)
    return int((top1(decoder, states) == top1(decoder, case.window.states[-1:])).sum())


def _seconds(chooser: Optimiser, case: Case, variant: Thinning) -> float:
    return timed(lambda: choose(chooser, case, variant))


def _over(above: str, below: str, medians: Medians) -> float:
    return medians[above] / medians[below]


def _ends(values: Iterable[int]) -> tuple[int, int]:
    found = sorted(values)
    return found[0], found[-1]


def _layer_weights(spec: ModelSpec) -> tuple[int, int]:
    """Numbers in the projections of attention and of an MLP."""
    attention = 2 * spec.hidden_size * spec.head_dim * (spec.num_heads + spec.num_kv_heads)
    return attention, 3 * spec.hidden_size * spec.intermediate_size
