"""SWIFT (Xia et al. 2024): draft without sublayers that a search over random sets has found dispensable."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from specbench.methods.build import Parts, build_controller
from specbench.methods.layer_skip import LayerSkipDrafter
from specbench.methods.skip_search import SearchingDrafter, branching, initial_set, interior, with_given_set
from specbench.methods.swift_search import GaussianProcess, SetSearch
from specbench.types import Verdict


@dataclass(kw_only=True)
class Swift(SearchingDrafter):
    """Tries a set every `opt_interval` steps on the first `context_window` + 1 generated tokens of the prompt.

    A set's score (matchness) is the share of those tokens that the model without it predicts. Scores of different
    prompts are compared with each other, and the first set is never scored, as published.
    """

    new_search: Callable[[], SetSearch]
    context_window: int
    opt_interval: int
    search: SetSearch = field(init=False)

    @classmethod
    def build(cls, config: Any, parts: Parts) -> LayerSkipDrafter:
        """With `skip_set` a drafter that never searches."""
        num_layers = interior(parts.target.decoder)
        return with_given_set(config, parts) or cls(
            controller=build_controller(config, parts),
            branching=branching(config.tree, parts),
            initial=initial_set(config, parts),
            new_search=lambda: new_search(config, num_layers),
            context_window=config.context_window,
            opt_interval=config.opt_interval,
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.search = self.new_search()

    @property
    def has_searched(self) -> bool:
        return self.search.best > 0.0

    def search_step(self, verdict: Verdict) -> None:
        # The published count of steps has none for the prefill.
        if self.search.active and self._has_context() and (self._step - 1) % self.opt_interval == 0:
            self._try_one()

    def reset(self) -> None:
        super().reset()
        self.search = self.new_search()

    def matchness(self, skip: frozenset[int]) -> float:
        """The share of the first generated tokens, from the second on, that the model without `skip` predicts."""
        first = self._prompt_length
        seen = self.request.committed[first : first + self.context_window + 1]
        out = self.look(seen[:-1], first, skip=skip)
        assert out.logits is not None
        wanted = torch.tensor(seen[1:], device=out.logits.device)
        return float((out.logits[0].argmax(-1) == wanted).sum()) / self.context_window

    def _has_context(self) -> bool:
        return self.num_generated > self.context_window + 1

    def _try_one(self) -> None:
        start, opt_iter = time.perf_counter(), self.search.opt_iter
        proposal = self.search.propose()
        score = self.matchness(proposal.sublayers)
        improved = self.search.judge(proposal, score)
        why = {"opt_iter": opt_iter, "active": self.search.active, "search_s": time.perf_counter() - start}
        if improved:
            self._record(proposal.sublayers, "better", bayesian=proposal.bayesian, **why)
        elif not self.search.active:
            self._record(self.skip, "limit", **why)

    def _record(self, skip: frozenset[int] | None, reason: str, **why: Any) -> None:
        """Matchness is the acceptance that the search expects of its best set."""
        best = self.search.best
        self.install(skip, reason=reason, matchness=best, predicted_acceptance=best, **why)


def new_search(config: Any, num_layers: int) -> SetSearch:
    """A search that has seen nothing."""
    places = 2 * num_layers
    process = GaussianProcess(
        dimensions=places,
        kappa=config.kappa,
        noise=config.gp_alpha,
        seed=config.gp_seed,
        fit_restarts=config.gp_restarts,
        samples=config.acquisition_samples,
        restarts=config.acquisition_restarts,
    )
    return SetSearch(
        num_layers=num_layers,
        num_skip=int(places * config.skip_ratio),
        seed=config.candidate_seed,
        max_opt_iter=config.max_opt_iter,
        max_tolerance=config.max_tolerance,
        max_score=config.max_score,
        bayes_interval=config.bayes_interval,
        suggester=process if config.bayes else None,
        active=config.search,
    )
