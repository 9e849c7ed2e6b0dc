"""The search over sublayers: its estimates are those of really skipping, and its table keeps its rules."""

from __future__ import annotations

import functools
from dataclasses import replace
from itertools import product

import pytest
import torch

from specbench.hardware.latency import LatencyModel
from specbench.methods.draft_plan import CostModel, first_best, tokens_per_time
from specbench.methods.knapsack import (
    Candidates,
    Problem,
    Table,
    Weights,
    Window,
    acceptance,
    count_evaluations,
    integer_weights,
    search,
)
from specbench.models.decoder import Decoder
from specbench.models.tiny import SPEC, first_layers, target_weights
from tests.decoding.tinies import ar_tokens, loaded, tiny_target
from tests.methods.windows import agreement, verified

PREFIX = (256, 258, *b"it was the best of times, it w", 260, 259)
ROWS = 20
EQUAL = Weights(1, 1)


@functools.cache
def answer() -> tuple[int, ...]:
    return ar_tokens(ROWS, PREFIX)


def found(weights: Weights = EQUAL, share: float = 0.5, **changes: object) -> tuple[Candidates, Window, Decoder]:
    decoder = tiny_target()
    target, window = verified(decoder, PREFIX, answer())
    budget = int(share * weights.total(SPEC.num_layers))
    problem = replace(Problem(weights, budget, 0.5), **changes)  # type: ignore[arg-type]
    with torch.inference_mode():
        return search(decoder, target.cache, window, problem), window, decoder


WEIGHTS = [Weights(1, 1), Weights(2, 1), Weights(1, 3), Weights(5, 1)]


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_acceptance_is_that_of_really_running_every_candidate(weights: Weights) -> None:
    candidates, window, decoder = found(weights)
    assert len(candidates) > 4
    shares = [count / ROWS for count in acceptance(decoder, candidates, window)]
    assert shares == [agreement(decoder, PREFIX, answer(), skip) for skip in candidates.skips]
    assert min(shares) < 1.0


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_candidates_use_the_weight_they_say_and_keep_the_outer_layers(weights: Weights) -> None:
    candidates, _, decoder = found(weights)
    outer = {0, 1, decoder.num_sublayers - 2, decoder.num_sublayers - 1}
    assert list(candidates.used) == sorted(set(candidates.used))
    for used, skip in zip(candidates.used, candidates.skips, strict=True):
        assert used == sum(weights.of(index) for index in skip) <= weights.total(SPEC.num_layers) // 2
        assert not skip & outer


def test_nothing_skipped_is_the_whole_model() -> None:
    candidates, window, decoder = found()
    assert candidates.used[0] == 0
    assert candidates.skips[0] == frozenset()
    assert candidates.scores[0] == pytest.approx(ROWS, abs=1e-3)
    assert acceptance(decoder, candidates, window)[0] == ROWS


def test_the_committed_cache_is_left_alone() -> None:
    target, window = verified(tiny_target(), PREFIX, answer())
    before = [{name: buffer.clone() for name, buffer in layer.items()} for layer in target.cache.layers]
    with torch.inference_mode():
        search(tiny_target(), target.cache, window, Problem(Weights(1, 1), 6, 0.5))
    for layer, kept in zip(target.cache.layers, before, strict=True):
        assert all(torch.equal(layer[name], kept[name]) for name in kept)


def test_chunks_of_branches_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, *_ = found()
    monkeypatch.setattr("specbench.methods.knapsack._SCORE_ELEMENTS", 1)
    monkeypatch.setattr("specbench.methods.knapsack._HEAD_ROWS", 7)
    parts, window, decoder = found()
    assert parts.skips == whole.skips
    assert parts.scores == pytest.approx(whole.scores, abs=1e-4)
    assert acceptance(decoder, parts, window) == acceptance(decoder, whole, window)


def test_the_count_in_advance_is_the_count() -> None:
    for most in (None, 5, 1):
        for weights in WEIGHTS:
            problem = Problem(weights, weights.total(SPEC.num_layers) // 2, -1.0, most)
            candidates, *_ = found(weights, threshold=-1.0, max_branches=most)
            expected = count_evaluations(2 * SPEC.num_layers, problem)
            assert candidates.evaluations == expected["attention"] + expected["mlp"]
            assert len(candidates) == expected["candidates"] <= (most or 99)


def test_a_high_threshold_prunes_down_to_nothing() -> None:
    some, *_ = found(threshold=0.995)
    everything, *_ = found()
    assert 0 < len(some) < len(everything)
    nothing, *_ = found(threshold=1.1)
    assert len(nothing) == 0
    assert nothing.skips == ()


# ---- ties


def table(reference: torch.Tensor) -> Table:
    return Table(reference[None])


def test_executing_wins_ties() -> None:
    state = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    problem = Problem(Weights(1, 1), 4, 0.5)
    one = table(state)
    one.advance(state[None] * 2, state, problem, weight=1)  # both branches point the same way
    assert one.used == [0, 1]
    one.advance(torch.stack([state, state]), state, problem, weight=1)
    assert one.parents[-1] == {0: (0, False), 1: (1, False), 2: (1, True)}
    assert one.skip_set(1) == {2}
    assert one.skip_set(2) == {2, 3}


def test_a_better_skip_replaces_an_execution() -> None:
    state = torch.tensor([[1.0, 0.0]])
    one = table(state)
    one.advance(state[None], state, Problem(Weights(1, 1), 4, 0.5), weight=1)
    worse = torch.tensor([[[1.0, 0.5]], [[1.0, 0.5]]])
    one.advance(worse, state, Problem(Weights(1, 1), 4, 0.5), weight=1)
    assert one.parents[-1][1] == (0, True)


def test_the_budget_ends_skipping() -> None:
    state = torch.tensor([[1.0, 0.0]])
    one = table(state)
    for _ in range(4):
        one.advance(one.states.clone(), state, Problem(Weights(1, 1), 2, 0.5), weight=1)
    assert one.used == [0, 1, 2]


# ---- weights


@pytest.mark.parametrize(
    ("attention", "mlp", "expected"),
    [
        (1.0, 1.0, (1, 1)),
        (2.5, 1.0, (2, 1)),  # half to even
        (4.5, 1.0, (4, 1)),
        (3.5, 1.0, (4, 1)),
        (1.0, 2.6, (1, 3)),
        (80.0, 1.0, (5, 1)),
        (1e-12, 1.0, (1, 5)),  # an attention that costs nothing: no division ends in infinity
        (1e-300, 1e300, (1, 5)),
    ],
)
def test_integer_weights(attention: float, mlp: float, expected: tuple[int, int]) -> None:
    assert integer_weights(attention, mlp, 5) == expected


# ---- the formula, against all subsets


def test_brute_force_over_all_subsets_agrees() -> None:
    """Every subset of a 4-layer model really run: the formula names the best, and the search's rates are right."""
    layers, alike = 4, 1e-9
    decoder = loaded(replace(SPEC, num_layers=layers), first_layers(target_weights(), layers))
    target, window = verified(decoder, PREFIX, answer())
    latency = LatencyModel(attention_slope=0.001, attention_base=0.9, mlp=1.0)
    context, most = len(PREFIX) + ROWS, 6
    inner = range(2, 2 * layers - 2)
    subsets = [frozenset(b for b, used in zip(inner, bits, strict=True) if used) for bits in product((0, 1), repeat=4)]
    alphas = [agreement(decoder, PREFIX, answer(), subset) for subset in subsets]
    attention, mlp = 0.9 + 0.001 * context, 1.0

    def rate(skip: frozenset[int], alpha: float, length: int) -> float:
        kept = sum(attention if b % 2 == 0 else mlp for b in range(2 * layers) if b not in skip)
        return sum(alpha**k for k in range(length + 1)) / (length * kept + layers * (attention + mlp))

    brute = {
        (subset, length): rate(subset, alpha, length)
        for subset, alpha in zip(subsets, alphas, strict=True)
        for length in range(most + 1)
    }
    rates = tokens_per_time(alphas, CostModel(latency, layers)(context, subsets, most))
    for row, subset in enumerate(subsets):
        assert list(rates[row]) == pytest.approx([brute[subset, d] for d in range(most + 1)], rel=alike)
    best = first_best(rates, (0, most))
    assert best.rate == pytest.approx(max(brute.values()), rel=alike)
    with torch.inference_mode():
        candidates = search(decoder, target.cache, window, Problem(Weights(1, 1), 4, -1.0))
        shares = [count / ROWS for count in acceptance(decoder, candidates, window)]
    assert 3 <= len(candidates) <= 5
    ours = tokens_per_time(shares, CostModel(latency, layers)(context, candidates.skips, most))
    for row, skip in enumerate(candidates.skips):
        assert list(ours[row]) == pytest.approx([brute[skip, d] for d in range(most + 1)], rel=alike)
    assert ours.max() <= max(brute.values()) + alike
