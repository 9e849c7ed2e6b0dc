"""The enumerator gives exact probabilities, so what is compared with it is compared with the truth."""

from fractions import Fraction

import pytest
import torch

from scripts.golden.enumeration import BranchDraws, all_sequences, branches, continued, distribution


def test_independent_draws_multiply():
    p = torch.tensor([0.25, 0.75], dtype=torch.float64)
    found = distribution(lambda draws: (draws.bernoulli(0.125), draws.categorical(p)))
    assert found == {(True, 0): 1 / 32, (True, 1): 3 / 32, (False, 0): 7 / 32, (False, 1): 21 / 32}


def test_later_draws_may_depend_on_earlier_ones():
    def toss_until_heads(draws: BranchDraws) -> int:
        return next((n for n in range(3) if draws.bernoulli(0.5)), 3)

    assert distribution(toss_until_heads) == {0: 0.5, 1: 0.25, 2: 0.125, 3: 0.125}


def test_branches_without_probability_are_not_run():
    p = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    assert list(branches(lambda draws: (draws.bernoulli(0.0), draws.bernoulli(1.0), draws.categorical(p)))) == [
        (1.0, (False, True, 1))
    ]


def test_weights_need_not_be_normalised():
    weights = torch.tensor([1.0, 3.0], dtype=torch.float64)
    assert distribution(lambda draws: draws.categorical(weights)) == {0: 0.25, 1: 0.75}


def test_a_draw_from_nothing_is_an_error():
    with pytest.raises(ValueError, match="without mass"):
        list(branches(lambda draws: draws.categorical(torch.zeros(3))))


def test_short_outputs_go_on_as_the_target_says():
    def following(prefix):
        return [0.5, 0.5] if len(prefix) == 1 else [0.0, 1.0]

    outputs = {(0,): float(Fraction(3, 4)), (1, 0, 1): 0.25}
    assert continued(outputs, 3, following) == {(0, 0, 1): 0.375, (0, 1, 1): 0.375, (1, 0, 1): 0.25}


def test_sequences_count_like_numbers():
    assert list(all_sequences(2, 2)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
