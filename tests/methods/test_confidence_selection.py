"""ConfLayers' selection rule: what it may skip, what moves a window, and what a change of scale must not change."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from specbench.methods.confidence_selection import (
    Rule,
    confidences,
    curvature,
    entropies,
    select,
    select_standardised,
    standardise,
    window_sizes,
)

WIDE = Rule(dtype="float64")


def random_values(seed: int, count: int = 30) -> np.ndarray:
    return np.random.RandomState(seed).gamma(2.0, size=count)


@pytest.mark.parametrize("seed", range(8))
def test_scale_and_shift_of_the_confidences_change_nothing(seed):
    values = random_values(seed)
    plain = select(values, 32, 0.2, WIDE)
    moved = select(3.5 * values + 7.0, 32, 0.2, WIDE)
    assert moved.layers == plain.layers
    assert moved.windows == plain.windows


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("lam", [-100.0, 0.0, 100.0])
def test_first_and_last_layer_are_never_skipped(dtype, lam):
    for seed in range(4):
        found = select(random_values(seed), 32, lam, Rule(dtype=dtype))
        assert set(found.layers) <= set(range(1, 31))
        assert found.z.dtype == np.dtype(dtype)
        assert len(found.windows) == len(found.thresholds) == 30


def test_lambda_moves_between_skipping_almost_all_and_nothing():
    values = random_values(1)
    sizes = [len(select(values, 32, lam, WIDE).layers) for lam in (-50.0, -0.5, 0.0, 0.5, 50.0)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 20
    assert sizes[-1] < 3  # where both neighbours are equal there is no spread to weigh


def test_a_layer_is_compared_with_its_neighbours_without_itself():
    z = np.array([0.0, -1.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    found = select_standardised(z, 9, 0.0, Rule(dtype="float64", fixed_window=0))  # one neighbour on each side
    assert found.windows == (2,) * 7
    assert found.local_means.tolist() == [-1.0, 0.0, -0.5, 0.5, 0.0, 0.5, 0.0]
    assert found.layers == (2, 4, 6)  # 0 is not below 0: equal is kept


def test_lambda_weighs_the_spread_of_the_neighbours():
    z = np.array([1.0, -0.1, -1.0])
    assert select_standardised(z, 5, 0.0, Rule(dtype="float64", fixed_window=0)).layers == (2, 3)
    assert select_standardised(z, 5, 0.5, Rule(dtype="float64", fixed_window=0)).layers == (3,)


def test_a_layer_without_neighbours_is_compared_with_zero():
    found = select_standardised(
        np.array([-1.0, 1.0, -1.0]), 5, 0.4, Rule(dtype="float64", window_base=0, window_gain=0)
    )
    assert found.windows == (0, 0, 0)
    assert found.layers == (1, 3)


def test_fixed_windows_are_the_base_and_the_given_width():
    assert window_sizes(random_values(0), 32, Rule(fixed_window=10)) == (12,) * 30
    assert window_sizes(random_values(0), 32, Rule(fixed_window=20)) == (22,) * 30


def test_windows_grow_with_depth_and_with_the_leading_run():
    values = standardise(random_values(3))
    run, mapped = curvature(values)
    assert run == 1
    expected = [2 + math.floor(5 * bend * (i + 1) / 32) for i, bend in enumerate(mapped)]
    assert list(window_sizes(values, 32, WIDE)) == expected
    flat_start = np.concatenate([np.zeros(8), values[8:]])
    longer = curvature(flat_start)[0]
    assert longer > 1
    assert max(window_sizes(flat_start, 32, WIDE)) > max(expected)
    bounded = window_sizes(flat_start, 32, Rule(dtype="float64", max_gain=5))
    assert max(bounded) <= 2 + 5


def test_curvature_is_mapped_to_mean_one_half():
    for seed in range(6):
        mapped = curvature(random_values(seed))[1]
        assert mapped.mean() == pytest.approx(0.5)
        assert mapped.min() >= 0.0
        assert mapped.max() <= 1.0


def test_no_curvature_at_all_is_one_half_everywhere():
    run, mapped = curvature(np.full(12, 0.25))
    assert run == 12
    assert mapped.tolist() == [0.5] * 12


def test_precision_decides_near_ties():
    """With steps far below float16's resolution, float16 sees equal layers where float64 sees an order."""
    values = 1.0 + 1e-5 * np.arange(20.0) + np.where(np.arange(20) == 19, 3.0, 0.0)
    half = select(values, 22, 0.0, Rule(dtype="float16"))
    assert curvature(half.z)[0] > curvature(select(values, 22, 0.0, WIDE).z)[0] or half.layers != ()


def test_confidence_is_zero_for_uniform_and_one_for_certain_outputs():
    rows = torch.zeros(3, 64)
    assert confidences(entropies(rows).mean().numpy(), 64, "float32") == pytest.approx(0.0, abs=1e-5)
    rows[:, 5] = 80.0
    assert confidences(entropies(rows).mean().numpy(), 64, "float32") == pytest.approx(1.0, abs=1e-5)


def test_entropy_is_shannons():
    p = torch.tensor([[0.5, 0.25, 0.25]])
    assert float(entropies(p.log())[0]) == pytest.approx(1.5 * math.log(2), abs=1e-5)


def test_huge_and_infinite_outputs_stay_finite():
    rows = torch.tensor([[1e30, -1e30, 0.0], [float("inf"), 0.0, float("-inf")]])
    assert bool(entropies(rows).isfinite().all())
