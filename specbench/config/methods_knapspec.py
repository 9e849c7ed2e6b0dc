"""KnapSpec: what its configuration may say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from omegaconf import MISSING

from specbench.config.checks import at_least, between, one_of
from specbench.config.methods import MethodConfig
from specbench.config.store import schema
from specbench.types import ConfigError

BEFORE_FIRST_SET = ("ar", "full_model")
SCHEDULES = ("tokens", "steps")
LENGTH_MODES = ("planned", "fixed_gamma")
ESTIMATES = ("mean", "lower")
COST_MODELS = ("paper", "measured")
GUARDS = ("measured", "none")


@schema("method", "knapspec")
@dataclass
class KnapspecConfig(MethodConfig):
    """KnapSpec: drafts without some attention and MLP sublayers, chosen with the draft length by tokens per time.

    When: `schedule=tokens` searches once `window_tokens` rows are there, then every `interval_tokens` tokens, twice as
    far apart each time plain decoding wins (`double_interval`); `schedule=steps` after steps accumulation_steps + 1,
    then every `optimize_interval` steps, over the rows of `accumulation_steps` steps. `before_first_set`: plain steps
    (`ar`) or drafts by the whole model. `search_after_end` also after the last step. `search_budget`: the share of
    decode time that searches may take (null = no limit). `carry_over` keeps a set for the next prompt of the scope.

    What: `sim_threshold` prunes on the mean cosine, `max_weight` caps the integer weights, `skip_weight_budget` is the
    share of the total weight that may be skipped. `alpha_estimate`, `cost_model`, `min_gain` (over plain decoding; 0 =
    any), `include_no_skip_candidate`, `draft_length_mode` and `planned_length_min`..`planned_length_max` (null = the
    controller's cap) say how set and length are chosen. `guard` returns to plain decoding where the last `guard_tokens`
    drafted tokens came slower. `latency`: [mlp, attention a token of context, attention base], null = measured here
    with the `profile_*` keys. `skip_set`: a file or a list of sublayers that is used without any search.
    """

    takes_controller: ClassVar[bool] = True

    schedule: str = MISSING
    window_tokens: int = MISSING
    interval_tokens: int = MISSING
    double_interval: bool = MISSING
    optimize_interval: int = MISSING
    accumulation_steps: int = MISSING
    before_first_set: str = MISSING
    search_after_end: bool = MISSING
    search_budget: float | None = MISSING
    carry_over: bool = MISSING
    sim_threshold: float = MISSING
    max_weight: int = MISSING
    skip_weight_budget: float = MISSING
    include_no_skip_candidate: bool = MISSING
    alpha_estimate: str = MISSING
    cost_model: str = MISSING
    min_gain: float = MISSING
    draft_length_mode: str = MISSING
    planned_length_min: int = MISSING
    planned_length_max: int | None = MISSING
    guard: str = MISSING
    guard_tokens: int = MISSING
    latency: list[float] | None = None
    profile_lengths: list[int] = MISSING
    profile_warmup: int = MISSING
    profile_iters: int = MISSING
    skip_set: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("method.schedule", self.schedule, SCHEDULES)
        one_of("method.before_first_set", self.before_first_set, BEFORE_FIRST_SET)
        one_of("method.alpha_estimate", self.alpha_estimate, ESTIMATES)
        one_of("method.cost_model", self.cost_model, COST_MODELS)
        one_of("method.draft_length_mode", self.draft_length_mode, LENGTH_MODES)
        one_of("method.guard", self.guard, GUARDS)
        self._check_numbers()
        self._check_schedule()
        self._check_lengths()
        self._check_latency()

    def _check_numbers(self) -> None:
        for name in ("window_tokens", "interval_tokens", "accumulation_steps", "max_weight", "guard_tokens"):
            at_least(f"method.{name}", getattr(self, name), 1)
        at_least("method.min_gain", self.min_gain, 0.0)
        between("method.sim_threshold", self.sim_threshold, -1.0, 1.0)
        between("method.skip_weight_budget", self.skip_weight_budget, 0.0, 1.0)
        if self.search_budget is not None:
            between("method.search_budget", self.search_budget, 0.0, 1.0)

    def _check_schedule(self) -> None:
        # The search comes after the step with this residue; a shorter interval has no such step.
        if self.optimize_interval <= self.accumulation_steps + 1:
            raise ConfigError(
                f"method.optimize_interval={self.optimize_interval}: must be more than "
                f"method.accumulation_steps + 1 = {self.accumulation_steps + 1}, or no search would ever run"
            )

    def _check_lengths(self) -> None:
        at_least("method.planned_length_min", self.planned_length_min, 0)
        if self.planned_length_max is not None and self.planned_length_max < self.planned_length_min:
            raise ConfigError(
                f"method.planned_length_max={self.planned_length_max}: must be method.planned_length_min="
                f"{self.planned_length_min} or more, or null for the controller's cap"
            )

    def _check_latency(self) -> None:
        if self.latency is not None and (len(self.latency) != 3 or self.cost_model != "paper"):
            raise ConfigError(
                f"method.latency={self.latency}: must be [mlp, attention per token of context, attention base] "
                "together with method.cost_model=paper, or null for what this machine is measured to take"
            )
        if not self.profile_lengths or min(self.profile_lengths) < 1 or len(set(self.profile_lengths)) < 2:
            raise ConfigError(f"method.profile_lengths={self.profile_lengths}: must be two or more different lengths")
        at_least("method.profile_warmup", self.profile_warmup, 0)
        at_least("method.profile_iters", self.profile_iters, 1)
        if self.skip_set is not None and not isinstance(self.skip_set, str | list):
            raise ConfigError(f"method.skip_set={self.skip_set}: must be a file, a list of sublayers, or null")
