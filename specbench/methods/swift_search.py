"""SWIFT's search for sublayers to skip: random and Bayesian proposals, kept when they score better than all before.

No model here: the drafter scores a proposal, and this says what it was and whether to keep it. A proposal is a vector
over 2 (L-2) places: attention of the layers 1..L-2, then their MLPs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Proposal:
    """Sublayers to skip, and the point that stands for them: 0/1, or as the Gaussian process suggested it."""

    sublayers: frozenset[int]
    point: Vector
    bayesian: bool = False


class Suggester(Protocol):
    """Learns scores of points and suggests where a better one may be."""

    def suggest(self) -> Vector:
        """A point of the unit box."""

    def register(self, point: Vector, score: float) -> None:
        """Learn one score."""


@dataclass
class GaussianProcess:
    """Upper confidence bound over a Gaussian process with a Matern 5/2 kernel on the unit box.

    Source: the defaults of the package bayesian-optimization 1.5, which the published code uses.
    """

    dimensions: int
    kappa: float
    noise: float
    seed: int
    fit_restarts: int
    samples: int
    restarts: int
    _points: list[Vector] = field(init=False, default_factory=list)
    _scores: list[float] = field(init=False, default_factory=list)
    _random: np.random.RandomState = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._random = np.random.RandomState(self.seed)

    def register(self, point: Vector, score: float) -> None:
        self._points.append(point)
        self._scores.append(score)

    def suggest(self) -> Vector:
        tries = self._uniform(self.samples)
        best: Vector = tries[0]
        if not self._points:
            return best
        bound = self._upper_bound(self._fitted())
        values = bound(tries)
        best, highest = tries[int(values.argmax())], float(values.max())
        for start in [best, *self._uniform(self.restarts)] if self.restarts else []:
            found = minimize(
                lambda x: -bound(x[None])[0], start, bounds=[(0.0, 1.0)] * self.dimensions, method="L-BFGS-B"
            )
            if found.success and -float(found.fun) >= highest:
                best, highest = np.clip(found.x, 0.0, 1.0), -float(found.fun)
        return best

    def _uniform(self, count: int) -> Vector:
        points: Vector = self._random.uniform(size=(count, self.dimensions))
        return points

    def _fitted(self) -> Any:
        # Loading scikit-learn takes a second, which a search without it need not pay.
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import Matern

        model = GaussianProcessRegressor(
            kernel=Matern(nu=2.5),
            alpha=self.noise,
            normalize_y=True,
            n_restarts_optimizer=self.fit_restarts,
            random_state=self._random,
        )
        return model.fit(np.stack(self._points), np.array(self._scores))

    def _upper_bound(self, model: Any) -> Callable[[Vector], Vector]:
        def bound(points: Vector) -> Vector:
            mean, std = model.predict(points, return_std=True)
            values: Vector = mean + self.kappa * std
            return values

        return bound


@dataclass
class SetSearch:
    """State of the search over the sublayers of `num_layers` interior layers, `num_skip` of which a proposal skips.

    The limits are strict, as published: the search ends after max_tolerance + 1 proposals in a row without a gain, or
    after max_opt_iter + 1. `suggester` None = random proposals only.
    """

    num_layers: int
    num_skip: int
    seed: int
    max_opt_iter: int
    max_tolerance: int
    max_score: float
    bayes_interval: int = 1
    suggester: Suggester | None = None
    active: bool = True
    opt_iter: int = 0
    best: float = 0.0
    tolerance: int = 0
    _random: np.random.RandomState = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._random = np.random.RandomState(self.seed)

    def propose(self) -> Proposal:
        """The next candidate: random, and every `bayes_interval`-th suggested."""
        places = 2 * self.num_layers
        if self.suggester is not None and (self.opt_iter + 1) % self.bayes_interval == 0:
            point = self.suggester.suggest()
            chosen = np.argsort(-point, kind="stable")[: self.num_skip]
            return Proposal(self._sublayers(chosen), point, bayesian=True)
        chosen = self._random.choice(places, self.num_skip, replace=False)
        point = np.zeros(places)
        point[chosen] = 1.0
        return Proposal(self._sublayers(chosen), point)

    def judge(self, proposal: Proposal, score: float) -> bool:
        """Count a scored proposal and say whether it is the best so far and to be installed."""
        if self.suggester is not None:
            self.suggester.register(proposal.point, score)
        improved = score > self.best
        if improved:
            self.best, self.tolerance = score, 0
        else:
            self.tolerance += 1
        self.opt_iter += 1
        if improved and score > self.max_score:
            self.active = False
        if self.tolerance > self.max_tolerance or self.opt_iter > self.max_opt_iter:
            self.active = False
        return improved

    def _sublayers(self, chosen: NDArray[np.integer]) -> frozenset[int]:
        """Places to sublayer numbers: layer l has attention 2l and MLP 2l + 1."""
        n = self.num_layers
        return frozenset(2 * (int(i) % n + 1) + int(i) // n for i in chosen)
