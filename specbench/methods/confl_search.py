"""ConfLayers' online search: judge the installed set over a few steps, remember the best, choose again.

No model here: the drafter says how each step went, and this says when to choose and what to install.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean

Layers = tuple[int, ...]


@dataclass(frozen=True)
class SearchRules:
    """The numbers and switches of the search; docs/methods/confl.md says which are published and which are ours."""

    skip_ratio: float
    search_interval: int
    max_opt_iter: int
    max_score: float
    min_acc_for_stop: float
    lambda_mode: str  # fixed | adaptive
    lambda_init: float
    lambda_step: float
    ratio_band: float
    early_abort: str  # half | exact_half | never
    min_set: str  # at_least | above
    fallback_set: str  # uniform | last | empty
    keep_history: bool  # steps of the previous prompt count


@dataclass
class LayerSearch:
    """State of the search over `num_candidates` layers; it lives as long as `method.scope` says."""

    rules: SearchRules
    num_candidates: int
    active: bool = True
    opt_iter: int = 0
    lam: float = field(init=False)
    best_accepted: float = 0.0
    best_layers: Layers = ()
    measured: tuple[float, float] | None = None  # (accepted tokens a step, acceptance rate) of the last judged set
    _accepted: list[int] = field(init=False, default_factory=list)
    _rates: list[float] = field(init=False, default_factory=list)
    _due: bool = field(init=False, default=True)

    def __post_init__(self) -> None:
        self.lam = self.rules.lambda_init

    def begin(self) -> None:
        """A new prompt: a choice is due as soon as there is enough text."""
        self._due = True
        if not self.rules.keep_history:
            self._forget()

    def is_due(self, layers: Layers, *, drafted: int, accepted: int) -> bool:
        """Count a step drafted without `layers` and say whether they should be chosen anew."""
        if drafted:
            self._accepted.append(accepted)
            self._rates.append(accepted / drafted)
        if self.opt_iter > 0:
            self._judge(layers)
        return self.active and (self._due or not self._large_enough(layers))

    def adopt(self, chosen: Layers) -> Layers:
        """Count a choice; lambda moves for the next one. Returns what to install."""
        if self.rules.lambda_mode == "adaptive":
            self._move_lambda(len(chosen) / self.num_candidates)
        self._forget()
        self._due = False
        self.opt_iter += 1
        if self.opt_iter < self.rules.max_opt_iter:
            return chosen
        self.active = False
        return self.best_layers or self._fallback(chosen)

    def _judge(self, layers: Layers) -> None:
        large, steps = self._large_enough(layers), len(self._accepted)
        if large and self._aborts(steps) and fmean(self._accepted) < 1.0:
            self._close()
        elif steps > self.rules.search_interval:
            if large and self._is_good_enough():
                self.active = False
            elif large:
                self._remember(layers)
            self._close()

    def _aborts(self, steps: int) -> bool:
        interval = self.rules.search_interval
        if self.rules.early_abort == "exact_half":  # as published: never for an odd interval
            return 2 * steps == interval
        return self.rules.early_abort == "half" and steps == max(1, interval // 2)

    def _is_good_enough(self) -> bool:
        accepted, rate = fmean(self._accepted), fmean(self._rates)
        return accepted > self.rules.min_acc_for_stop and rate > self.rules.max_score

    def _remember(self, layers: Layers) -> None:
        accepted = fmean(self._accepted)
        if accepted > self.best_accepted:
            self.best_accepted, self.best_layers = accepted, layers

    def _close(self) -> None:
        self.measured = (fmean(self._accepted), fmean(self._rates))
        self._due = True
        self._forget()

    def _forget(self) -> None:
        self._accepted.clear()
        self._rates.clear()

    def _large_enough(self, layers: Layers) -> bool:
        share = len(layers) / self.num_candidates
        if self.rules.min_set == "above":  # as published: lambda, which compares otherwise, may then never move
            return share > self.rules.skip_ratio
        return share >= self.rules.skip_ratio

    def _move_lambda(self, share: float) -> None:
        if share > self.rules.skip_ratio + self.rules.ratio_band:
            self.lam += self.rules.lambda_step
        elif share < self.rules.skip_ratio:
            self.lam -= self.rules.lambda_step

    def _fallback(self, last: Layers) -> Layers:
        if self.rules.fallback_set == "uniform":
            return tuple(range(1, self.num_candidates + 1, 2))
        return last if self.rules.fallback_set == "last" else ()
