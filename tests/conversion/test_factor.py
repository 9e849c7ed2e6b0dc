"""Factors: the best of their rank, whichever way the same optimum is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specbench.conversion.factor import factor, spectrum


def problem(rows: int, columns: int, seed: int, tokens: int = 200) -> tuple[Tensor, Tensor]:
    """A random weight and the second moment of correlated inputs."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    mix = torch.randn(columns, columns, generator=generator, dtype=torch.float64)
    x = torch.randn(tokens, columns, generator=generator, dtype=torch.float64) @ mix
    return weight, x.T @ x / tokens


def cholesky(moment: Tensor) -> Tensor:
    return torch.linalg.cholesky(moment)


def square_root(moment: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(moment)
    return vectors @ values.sqrt().diag() @ vectors.T


def whitened_with(root: Callable[[Tensor], Tensor], weight: Tensor, moment: Tensor, rank: int) -> Tensor:
    """Truncated SVD of W S with S S^T = moment, S undone afterwards."""
    s = root(moment)
    u, sizes, v = torch.linalg.svd(weight @ s, full_matrices=False)
    return (u[:, :rank] * sizes[:rank]) @ v[:rank] @ torch.linalg.inv(s)


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 9), st.integers(2, 9), st.integers(0, 99), st.data())
def test_every_way_of_whitening_is_one_product(rows: int, columns: int, seed: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, min(rows, columns)))
    weight, moment = problem(rows, columns, seed)
    found = factor(weight, rank, moment)
    for root in (cholesky, square_root):
        wanted = whitened_with(root, weight, moment, rank)
        torch.testing.assert_close(found.up @ found.down, wanted, rtol=1e-7, atol=1e-7)


def test_plain_factor_is_the_truncated_svd() -> None:
    weight, _ = problem(7, 5, 1)
    u, sizes, v = torch.linalg.svd(weight, full_matrices=False)
    found = factor(weight, 3)
    torch.testing.assert_close(found.up @ found.down, (u[:, :3] * sizes[:3]) @ v[:3])
    torch.testing.assert_close(spectrum(weight), sizes.square())


@pytest.mark.parametrize("shape", [(7, 5), (5, 7)])
def test_full_rank_is_exact_also_where_inputs_never_left_a_plane(shape: tuple[int, int]) -> None:
    weight, moment = problem(*shape, seed=2, tokens=2)
    for given_moment in (None, moment):
        found = factor(weight, min(shape), given_moment)
        torch.testing.assert_close(found.up @ found.down, weight, rtol=1e-12, atol=1e-12)


def test_columns_of_up_are_orthonormal() -> None:
    weight, moment = problem(9, 6, 3)
    up = factor(weight, 4, moment).up
    torch.testing.assert_close(up.T @ up, torch.eye(4, dtype=torch.float64))


def test_spectrum_is_what_a_rank_leaves_out() -> None:
    weight, moment = problem(6, 8, 4)
    found = factor(weight, 2, moment)
    rest = weight - found.up @ found.down
    left = torch.trace(rest @ moment @ rest.T)
    torch.testing.assert_close(spectrum(weight, moment)[2:].sum(), left)


def test_activations_are_served_better_than_by_the_weights_alone() -> None:
    weight, moment = problem(6, 8, 5)

    def loss(given_moment: Tensor | None) -> float:
        found = factor(weight, 2, given_moment)
        rest = weight - found.up @ found.down
        return float(torch.trace(rest @ moment @ rest.T))

    assert loss(moment) < 0.95 * loss(None)


@pytest.mark.parametrize("rank", [0, 6])
def test_a_rank_that_cannot_be_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match="must be 1 to 5"):
        factor(torch.ones(5, 7, dtype=torch.float64), rank)
