"""Whether more attention is skipped as the context grows: latencies and chosen sets at several contexts."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from specbench.methods.draft_plan import acceptance_rates, first_best, tokens_per_time
from specbench.methods.knapsack import Problem, Weights, acceptance, search
from specbench.methods.knapspec_search import Optimiser

from .measure import Figure
from .search import Case, optimiser, verified
from .stage import Settings, Stage


@dataclass(frozen=True)
class Found:
    """The best drafting set at a context, however plain decoding compares with it."""

    context: int
    skip: frozenset[int]
    length: int
    alpha: float
    gain: float  # predicted, over plain decoding
    share: float  # attention's part of what a candidate skips, mean over all candidates, in percent
    weights: tuple[int, int]  # of an attention and an MLP sublayer
    search_s: float


def longdoc(stage: Stage, settings: Settings) -> list[Figure]:
    """tA(n), tM, and the shares of attention and MLP sublayers in the chosen set, at every long context."""
    lengths = (128, *settings.long_contexts)
    chooser = optimiser(stage, f"method.profile_lengths={json.dumps(sorted(set(lengths)))}")
    text, rows = stage.prompt(max(settings.long_contexts)), settings.search_rows
    stage.prefixes.of(text)  # shorter prompts are its beginnings
    cases = [verified(stage, text[: context - rows + 1], rows) for context in settings.long_contexts]
    stage.prefixes.clear()
    found = [find(chooser, case, chooser.problem(case.context)) for case in cases]
    equal, layers = find(chooser, cases[-1], equal_costs(chooser, cases[-1].context)), stage.decoder.spec.num_layers
    chosen = [row for one in found for row in _figures(one, layers)]
    return [*_latencies(chooser, settings), *chosen, *_trend(found, equal, layers)]


def equal_costs(chooser: Optimiser, context: int) -> Problem:
    """The search as if an attention sublayer cost what an MLP costs: what the text alone asks for."""
    weights = Weights(1, 1)
    budget = int(chooser.options.skip_weight_budget * weights.total(chooser.decoder.spec.num_layers))
    return replace(chooser.problem(context), weights=weights, budget=budget)


@torch.inference_mode()
def find(chooser: Optimiser, case: Case, problem: Problem) -> Found:
    """One full search; a set is taken even where plain decoding would win."""
    started, options = time.perf_counter(), chooser.options
    candidates = search(chooser.decoder, case.target.cache, case.window, problem)
    matches = acceptance(chooser.decoder, candidates, case.window)
    alphas = acceptance_rates(matches, case.window.rows, options.alpha_estimate)
    costs = chooser.costs(case.context, candidates.skips, options.planned_length_max)
    best = first_best(tokens_per_time(alphas, costs), (1, options.planned_length_max), first=1)
    spent = time.perf_counter() - started
    assert best.rate is not None, "every candidate but the whole model was pruned"
    shares = [sum(index % 2 == 0 for index in skip) / len(skip) for skip in candidates.skips if skip]
    return Found(
        context=case.context,
        skip=candidates.skips[best.index],
        length=best.length,
        alpha=alphas[best.index],
        gain=best.rate / costs.plain_rate,
        share=100.0 * sum(shares) / len(shares),
        weights=(problem.weights.attention, problem.weights.mlp),
        search_s=spent,
    )


def _latencies(chooser: Optimiser, settings: Settings) -> list[Figure]:
    latency = chooser.latency
    crossing = (latency.mlp - latency.attention_base) / latency.attention_slope if latency.attention_slope else None
    detail = {"attention_base_ms": 1e3 * latency.attention_base, "attention_ms_per_1k": 1e6 * latency.attention_slope}
    rows = [Figure("tM", 1e3 * latency.mlp, "ms", None, latency.noisy, {"tA_equals_tM_at": crossing, **detail})]
    for context in settings.long_contexts:
        attention = latency.attention(context)
        detail = {"over_tM": attention / latency.mlp, "attention_weight": chooser.problem(context).weights.attention}
        rows.append(Figure(f"tA at {context}", 1e3 * attention, "ms", None, latency.noisy, detail))
    return rows


def _figures(found: Found, layers: int) -> list[Figure]:
    where, (attention, mlp) = f"at {found.context}", _skipped(found)
    chosen = {"sublayers": attention, "predicted_acceptance": found.alpha, "planned_length": found.length}
    weights = {"attention_weight": found.weights[0], "mlp_weight": found.weights[1]}
    return [
        Figure(f"attention skipped {where}", 100.0 * attention / layers, "%", None, False, chosen),
        Figure(f"MLP skipped {where}", 100.0 * mlp / layers, "%", None, False, {"sublayers": mlp}),
        Figure(f"attention's share of skips, all candidates {where}", found.share, "%", None, False, weights),
        Figure(f"predicted gain of drafting {where}", found.gain, "x", None, False, {"search_s": found.search_s}),
    ]


def _trend(found: Sequence[Found], equal: Found, layers: int) -> list[Figure]:
    """The paper's claim in one number, and what remains of it when the search is told that both kinds cost the same."""
    first, last = _skipped(found[0])[0], _skipped(found[-1])[0]
    attention, mlp = _skipped(equal)
    detail = {"attention_skipped": attention, "mlp_skipped": mlp, "with_measured_costs_%": found[-1].share}
    return [
        Figure("attention skipped, longest minus shortest context", 100.0 * (last - first) / layers, "points"),
        Figure(
            f"attention's share of skips at {equal.context} with equal costs", equal.share, "%", None, False, detail
        ),
    ]


def _skipped(found: Found) -> tuple[int, int]:
    mlp = sum(index % 2 for index in found.skip)
    return len(found.skip) - mlp, mlp
