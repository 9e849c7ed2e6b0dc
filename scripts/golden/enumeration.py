"""Every outcome of a random procedure with its exact probability.

The procedure gets an object with the two methods of `specbench.decoding.sampling.Draws` and is run once per branch:
a run replays a prefix of choices, then takes the first possible branch of each new draw and notes the others.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeVar

from torch import Tensor

T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)


class BranchDraws:
    """Draws of one branch: `choices` first, then the first possible value of each further draw."""

    def __init__(self, choices: tuple[int, ...]) -> None:
        self._replay = choices
        self._taken: list[int] = []
        self.probability = 1.0
        self.untried: list[tuple[int, ...]] = []

    def bernoulli(self, p: float) -> bool:
        """True or False; a value with probability zero is never taken."""
        p = min(1.0, max(0.0, p))
        return bool(self._choose([1.0 - p, p]))

    def categorical(self, p: Tensor) -> int:
        """An index with p [V] > 0, weighted by p / p.sum()."""
        return self._choose((p / p.sum()).tolist())

    def _choose(self, weights: Sequence[float]) -> int:
        possible = [value for value, weight in enumerate(weights) if weight > 0.0]
        if not possible:
            raise ValueError("a draw from a distribution without mass")
        depth = len(self._taken)
        if depth < len(self._replay):
            value = self._replay[depth]
        else:
            value = possible[0]
            self.untried += [(*self._taken, other) for other in possible[1:]]
        self._taken.append(value)
        self.probability *= weights[value]
        return value


def branches(run: Callable[[BranchDraws], T]) -> Iterator[tuple[float, T]]:
    """(probability, outcome) of every branch of `run`; the probabilities sum to 1."""
    pending: list[tuple[int, ...]] = [()]
    while pending:
        draws = BranchDraws(pending.pop())
        outcome = run(draws)
        yield draws.probability, outcome
        pending += draws.untried


def distribution(run: Callable[[BranchDraws], Key]) -> dict[Key, float]:
    """The exact distribution of what `run` returns."""
    totals: dict[Key, float] = defaultdict(float)
    for probability, outcome in branches(run):
        totals[outcome] += probability
    return dict(totals)


def continued(
    outputs: dict[tuple[int, ...], float], length: int, following: Callable[[Sequence[int]], Sequence[float]]
) -> dict[tuple[int, ...], float]:
    """Sequences of `length` tokens that start with an output and go on as `following(prefix) -> [V]` says."""
    totals: dict[tuple[int, ...], float] = defaultdict(float)
    for output, probability in outputs.items():
        if len(output) >= length:
            totals[output[:length]] += probability
            continue
        extended = {(*output, token): probability * weight for token, weight in enumerate(following(output)) if weight}
        for sequence, weight in continued(extended, length, following).items():
            totals[sequence] += weight
    return dict(totals)


def all_sequences(vocab: int, length: int) -> Iterator[tuple[int, ...]]:
    """Every sequence of `length` ids below `vocab`, first token most significant."""
    return itertools.product(range(vocab), repeat=length)
