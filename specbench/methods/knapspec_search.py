"""One KnapSpec optimisation: from the rows of a window to a skip set and a draft length, or to plain decoding."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from specbench.hardware.latency import LatencyModel
from specbench.methods.draft_plan import Choice, CostModel, acceptance_rates, first_best, tokens_per_time
from specbench.methods.knapsack import (
    Candidates,
    Problem,
    Window,
    acceptance,
    count_evaluations,
    integer_weights,
    search,
)
from specbench.models.decoder import Decoder
from specbench.models.kv_cache import KVCache

_UNCAPPED = 20  # the longest draft that is planned where the controller has no cap
# Thinner searches for when a full one takes too long: (share of the rows, most branches a sublayer).
_THINNED = ((1.0, None), (1.0, 16), (1.0, 8), (0.5, 8), (0.5, 4))


@dataclass(frozen=True)
class SearchOptions:
    """The fields of the configuration that say what is searched and how a winner is chosen."""

    sim_threshold: float
    max_weight: int
    skip_weight_budget: float
    include_no_skip_candidate: bool
    alpha_estimate: str
    min_gain: float
    draft_length_mode: str
    planned_length_min: int
    planned_length_max: int

    @classmethod
    def of(cls, config: Any) -> SearchOptions:
        """Without a largest length the controller's cap is it."""
        values = {field.name: getattr(config, field.name) for field in fields(cls)}
        if values["planned_length_max"] is None:
            cap = config.controller.num_draft_tokens or _UNCAPPED
            values["planned_length_max"] = max(config.planned_length_min, cap)
        return cls(**values)

    @property
    def planned(self) -> bool:
        return self.draft_length_mode == "planned"


class Effort(NamedTuple):
    """How much of a window is searched, how many branches a sublayer, and the seconds that is expected to take."""

    rows: int
    branches: int | None
    seconds: float


class Decision(NamedTuple):
    """The set to draft without (None = plain decoding), at most so many tokens (None = no plan), and why."""

    skip: frozenset[int] | None
    length: int | None
    why: dict[str, Any]


@dataclass(frozen=True)
class Optimiser:
    """Searches skip sets for one decoder at the costs of this machine."""

    decoder: Decoder
    costs: CostModel
    options: SearchOptions

    @property
    def latency(self) -> LatencyModel:
        return self.costs.latency

    def problem(self, context: int, branches: int | None = None) -> Problem:
        """Weights from the latencies at this context, and the largest skipped weight."""
        weights = integer_weights(self.latency.attention(context), self.latency.mlp, self.options.max_weight)
        total = weights.total(self.decoder.spec.num_layers)
        budget = int(self.options.skip_weight_budget * total)
        return Problem(weights, budget, self.options.sim_threshold, branches)

    def efforts(self, context: int, rows: int) -> Iterator[Effort]:
        """From the full search down to the thinnest."""
        for share, branches in _THINNED:
            some = max(1, round(share * rows))
            yield Effort(some, branches, self._seconds(self.problem(context, branches), context, some))

    def __call__(self, cache: KVCache, window: Window, effort: Effort) -> Decision:
        """Search the last rows of the window, which end where the cache ends."""
        window, context = window.last(effort.rows), cache.length
        problem = self.problem(context, effort.branches)
        candidates = search(self.decoder, cache, window, problem)
        why = self._setting(window, problem, context)
        if not len(candidates):
            return Decision(None, None, why | {"reason": "all_pruned"})
        matches = acceptance(self.decoder, candidates, window)
        return self._decide(candidates, matches, window.rows, context, why)

    def _decide(
        self, candidates: Candidates, matches: Sequence[int], rows: int, context: int, why: dict[str, Any]
    ) -> Decision:
        options = self.options
        alphas = acceptance_rates(matches, rows, options.alpha_estimate)
        if candidates.used[0] == 0:
            alphas[0] = 1.0  # nothing is left out: known, not estimated
        costs = self.costs(context, candidates.skips, options.planned_length_max)
        first = 0 if options.include_no_skip_candidate else 1
        choice = first_best(
            tokens_per_time(alphas, costs), (options.planned_length_min, options.planned_length_max), first=first
        )
        why |= _report(candidates, alphas, choice, rows) | {"plain_tokens_per_second": costs.plain_rate}
        if choice.rate is not None and choice.rate < options.min_gain * costs.plain_rate:
            return Decision(None, None, why | {"reason": "plain_wins"})
        if options.planned and choice.length == 0:
            return Decision(None, None, why | {"reason": "plain_wins"})
        length = choice.length if options.planned else None
        return Decision(candidates.skips[choice.index], length, why | {"reason": "search"})

    def _setting(self, window: Window, problem: Problem, context: int) -> dict[str, Any]:
        return {
            "rows": window.rows,
            "cached": context,
            "attention_s": self.latency.attention(context),
            "mlp_s": self.latency.mlp,
            "attention_weight": problem.weights.attention,
            "mlp_weight": problem.weights.mlp,
            "skip_budget": problem.budget,
            "max_branches": problem.max_branches,
        }

    def _seconds(self, problem: Problem, context: int, rows: int) -> float:
        count = _evaluations(self.decoder.num_sublayers, replace(problem, threshold=-1.0))
        latency = self.latency
        attention, mlp = latency.attention_row(context), latency.mlp_row
        return rows * (count["attention"] * attention + count["mlp"] * mlp + count["candidates"] * latency.head_row)


_evaluations = functools.lru_cache(maxsize=64)(count_evaluations)


def _report(candidates: Candidates, alphas: Sequence[float], choice: Choice, rows: int) -> dict[str, Any]:
    return {
        "used": list(candidates.used),
        "alphas": list(alphas),
        "chosen": choice.index,
        "planned_length": choice.length,
        "predicted_acceptance": alphas[choice.index],
        "predicted_tokens_per_second": choice.rate,
        "mean_cosine": candidates.scores[choice.index] / rows,
        "evaluations": candidates.evaluations,
    }
