"""KnapSpec: self-speculation without some attention and MLP sublayers, chosen while decoding by tokens per time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from specbench.decoding.loop import empty_draft
from specbench.decoding.protocol import Request
from specbench.hardware.latency import LatencyModel, ProfilePlan
from specbench.hardware.profile import VerifyCurve
from specbench.methods.build import Parts, build_controller
from specbench.methods.draft_plan import CostModel
from specbench.methods.knapspec_search import Optimiser, SearchOptions
from specbench.methods.layer_skip import LayerSkipDrafter
from specbench.methods.skip_schedule import Budget, Pace, Rows, Schedule, StepSchedule, TokenSchedule
from specbench.methods.skip_sets import given_set
from specbench.types import Draft, Needs, Verdict, VerifyResult

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Conduct:
    """How the drafter behaves around its searches; fields as in the configuration."""

    full_model_first: bool = False
    search_after_end: bool = False
    carry_over: bool = True
    guard: bool = True

    @classmethod
    def of(cls, config: Any) -> Conduct:
        return cls(
            full_model_first=config.before_first_set == "full_model",
            search_after_end=config.search_after_end,
            carry_over=config.carry_over,
            guard=config.guard == "measured",
        )


@dataclass
class KnapSpec(LayerSkipDrafter):
    """Collects states from verify passes, searches when the schedule says so, and drafts with what was found.

    Nothing is drafted in step 0. Seconds of steps are measured when greedy and predicted when sampling: there the
    number of drafted tokens decides which random numbers are drawn, and a seed must give the same answer again.
    """

    optimiser: Optimiser = field(kw_only=True)
    schedule: Schedule = field(kw_only=True)
    conduct: Conduct = field(default_factory=Conduct)
    pace: Pace = field(default_factory=lambda: Pace(32))
    budget: Budget = field(default_factory=lambda: Budget(None))
    searches: bool = True
    clock: Callable[[], float] = time.perf_counter
    _collected: Rows = field(init=False)
    _plan: int | None = field(init=False, default=None)  # most tokens a step (None = the controller's business)
    _found: bool = field(init=False, default=False)  # a search or the guard has decided something
    _prompt: int = field(init=False, default=0)
    _marked: float | None = field(init=False, default=None)  # when the last step ended
    _tried: int = field(init=False, default=0)  # drafted with the present set
    _accepted: int = field(init=False, default=0)

    @classmethod
    def build(cls, config: Any, parts: Parts) -> LayerSkipDrafter:
        """With `skip_set` a drafter that never searches."""
        decoder, controller = parts.target.decoder, build_controller(config, parts)
        if config.skip_set is not None:
            skip = given_set(config.skip_set, num_sublayers=decoder.num_sublayers, model=parts.model_hash)
            return LayerSkipDrafter(controller, skip)
        costs = CostModel(_latency(config, parts), decoder.spec.num_layers, _curve(config, parts))
        return cls(
            controller,
            optimiser=Optimiser(decoder, costs, SearchOptions.of(config)),
            schedule=_schedule(config),
            conduct=Conduct.of(config),
            pace=Pace(config.guard_tokens),
            budget=Budget(config.search_budget),
        )

    def __post_init__(self) -> None:
        self._collected = Rows(self.schedule.rows)
        self._forget()

    # ---- the protocol

    def begin(self, request: Request) -> None:
        super().begin(request)
        if not self.conduct.carry_over:
            self._forget()
        self._prompt, self._marked = len(request.committed), None
        self._collected.clear()
        self.schedule.begin()
        if self._found and self.skip is not None:
            self.install(self.skip, reason="carried_over", planned_length=self._plan)

    def needs(self) -> Needs:
        if not self.schedule.collects(self._step, self._emitted):
            return Needs()
        return Needs(residuals=tuple(range(1, self.request.target.decoder.num_sublayers)))

    def propose(self, budget: int) -> Draft:
        if self._step == 0:
            self._rows = self._drafted = 0
            return empty_draft("first_step")
        return self.drafted(budget, planned=self._plan)

    def observe(self, verdict: Verdict, result: VerifyResult) -> None:
        self._note(verdict)
        if result.residuals:
            # Rows that stay in the cache: the root and every accepted token that is not the next root.
            self._collected.add(result.residuals, len(verdict.tokens))
        ended = verdict.stopped or self._emitted >= self.request.max_new_tokens
        if self.conduct.search_after_end or not ended:
            self._guard()
            if self.schedule.due(self._step, self._emitted, len(self._collected)):
                self._search()
        super().observe(verdict, result)
        self._marked = self.clock()

    def reset(self) -> None:
        super().reset()
        self._forget()

    # ---- parts

    @property
    def _emitted(self) -> int:
        return len(self.request.committed) - self._prompt

    @property
    def _context(self) -> int:
        return self.request.target.cache.length

    def _forget(self) -> None:
        self.skip = frozenset() if self.conduct.full_model_first else None
        self._plan, self._found = None, False
        self._tried = self._accepted = 0
        self.schedule.reset()
        self._collected.clear()
        self.pace = Pace(self.pace.tokens)
        self.budget = Budget(self.budget.share)

    def _note(self, verdict: Verdict) -> None:
        """Count what the step did and how long it took."""
        self._tried += self._drafted
        self._accepted += verdict.num_accepted_spine
        seconds = self._step_seconds()
        if seconds is not None:
            self.budget.decoding += seconds
            self.pace.add(drafted=self._drafted > 0, emitted=len(verdict.tokens), seconds=seconds)

    def _step_seconds(self) -> float | None:
        if self.request.sampling.greedy:
            return None if self._marked is None else self.clock() - self._marked
        costs, context = self.optimiser.costs, self._context
        return self._drafted * costs.draft(context, self.skip or frozenset()) + costs.verify(context, self._drafted)

    def _guard(self) -> None:
        """Go back to plain decoding where drafting turned out to be slower."""
        if not self.conduct.guard or not self._drafted:
            return
        gain = self.pace.gain(self.optimiser.costs.verify(self._context, 0))
        if gain is not None and gain < 1.0:
            self._switch(None, None, reason="guard", measured_gain=gain)

    def _search(self) -> None:
        cache = self.request.target.cache
        efforts = self.optimiser.efforts(cache.length, len(self._collected))
        effort = next((effort for effort in efforts if self.budget.allows(effort.seconds)), None)
        if effort is None:  # asked again after the next step, or never where a schedule counts steps
            if self.schedule.rows is None:
                self._collected.clear()
            return
        started = self.clock()
        skip, length, why = self.optimiser(cache, self._collected.window(cache.length), effort)
        spent = self.clock() - started
        self.budget.searching += spent if self.request.sampling.greedy else effort.seconds
        if why["reason"] == "all_pruned":
            log.warning("no skip set keeps a mean cosine above method.sim_threshold; nothing is skipped")
            skip = frozenset() if self.conduct.full_model_first else None
        self._switch(skip, length, **why, search_s=spent, predicted_search_s=effort.seconds)

    def _switch(self, skip: frozenset[int] | None, length: int | None, **why: Any) -> None:
        """Draft in another way from the next step on; `measured_acceptance` is that of the way before."""
        measured = self._accepted / self._tried if self._tried else None
        self.install(skip, **why, measured_acceptance=measured)
        self._plan, self._found = length, True
        self._tried = self._accepted = 0
        self.schedule.decided(self._emitted, plain=skip is None)
        self._collected.clear()
        self.pace.restart()


def _schedule(config: Any) -> Schedule:
    if config.schedule == "steps":
        return StepSchedule(config.optimize_interval, config.accumulation_steps)
    return TokenSchedule(config.window_tokens, config.interval_tokens, config.double_interval)


def _latency(config: Any, parts: Parts) -> LatencyModel:
    if config.latency is not None:
        mlp, slope, base = config.latency
        return LatencyModel(attention_slope=slope, attention_base=base, mlp=mlp)
    assert parts.latency is not None, "the runner measures latencies"
    return parts.latency(ProfilePlan(tuple(config.profile_lengths), config.profile_warmup, config.profile_iters))


def _curve(config: Any, parts: Parts) -> VerifyCurve | None:
    if config.cost_model == "paper":
        return None
    assert parts.curve is not None, "the runner measures t(T)"
    return parts.curve()
