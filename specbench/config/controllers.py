"""Controllers: who says when to stop drafting. One dataclass a controller; `_target_` is the class that does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Optional, Union

from omegaconf import MISSING

from specbench.config.checks import at_least, between, one_of
from specbench.config.store import schema

PROBABILITIES = ("token", "top")
STATES = ("own", "predictor")
FEATURES = ("pred_state", "own_state", "both")
SCOPES = ("step", "context")
MASKS = ("causal", "block_causal")
LABELS = ("survive", "conditional", "soft")
RULES = ("threshold", "cost")
# What a block's chances become, by what the gate was taught: chances to be accepted at all, or given all before.
AGGREGATIONS = {"survive": ("mean", "min", "last"), "conditional": ("prod", "cumprod"), "soft": ("prod", "cumprod")}
DISTRIBUTIONS = ("raw", "warped")


@dataclass
class ControllerConfig:
    """What every controller has: `_target_` (path of its class) and `name` (what the user types).

    Class variable `bound`: it looks at AR's answer, so that its figures are a bound and not a method's.
    """

    bound: ClassVar[bool] = False

    _target_: str = MISSING
    name: str = MISSING


@schema("method/controller", "none")
@dataclass
class NoControllerConfig(ControllerConfig):
    """For methods that plan their draft length themselves, or draft nothing."""


@dataclass
class CappedConfig(ControllerConfig):
    """A controller with a cap: at most `num_draft_tokens` tokens in a step."""

    num_draft_tokens: int = MISSING

    def __post_init__(self) -> None:
        at_least("method.controller.num_draft_tokens", self.num_draft_tokens, 1)


@schema("method/controller", "fixed")
@dataclass
class FixedConfig(CappedConfig):
    """Always `num_draft_tokens` tokens."""


@schema("method/controller", "heuristic")
@dataclass
class HeuristicConfig(ControllerConfig):
    """Start with `start` tokens; `grow` more after a fully accepted draft, else `shrink` fewer, within 1 and the cap.

    `num_draft_tokens` null = no cap. The length lives as long as `method.scope` says: sample = anew for every prompt,
    run = carried over.
    """

    num_draft_tokens: Optional[int] = MISSING  # noqa: UP045  (OmegaConf reads this form only)
    start: int = MISSING
    grow: int = MISSING
    shrink: int = MISSING

    def __post_init__(self) -> None:
        at_least("method.controller.num_draft_tokens", self.num_draft_tokens, 1, null="no cap")
        most = float("inf") if self.num_draft_tokens is None else self.num_draft_tokens
        between("method.controller.start", self.start, 1, most)
        at_least("method.controller.grow", self.grow, 0)
        at_least("method.controller.shrink", self.shrink, 0)


@schema("method/controller", "confidence")
@dataclass
class ConfidenceConfig(CappedConfig):
    """Stop once the draft's probability falls below `threshold`: that of the drafted `token`, or of the `top` one."""

    threshold: float = MISSING
    probability: str = "token"

    def __post_init__(self) -> None:
        super().__post_init__()
        between("method.controller.threshold", self.threshold, 0.0, 1.0)
        one_of("method.controller.probability", self.probability, PROBABILITIES)


@schema("method/controller", "dynamic_confidence")
@dataclass
class DynamicConfidenceConfig(ConfidenceConfig):
    """The confidence stop with a threshold that is fitted anew after every verdict, starting at `threshold`.

    It minimises (false positive rate + `miss_cost` * false negative rate) over the last `max_history` verified tokens
    (null = all), once there are more than `min_history`.
    """

    miss_cost: float = MISSING
    min_history: int = MISSING
    max_history: Optional[int] = MISSING  # noqa: UP045

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("method.controller.miss_cost", self.miss_cost, 0.0)
        at_least("method.controller.min_history", self.min_history, 1)
        at_least("method.controller.max_history", self.max_history, self.min_history + 1, null="all")


@dataclass
class AdaptiveConfig(CappedConfig):
    """A rule whose `threshold` may move: up by `threshold_step` while acceptance is below `target_acceptance`, or down.

    `acceptance_memory` and `threshold_memory`: the share of the old value that each verdict leaves.
    """

    threshold: float = MISSING
    adaptive: bool = MISSING
    target_acceptance: float = MISSING
    threshold_step: float = MISSING
    acceptance_memory: float = MISSING
    threshold_memory: float = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("method.controller.threshold_step", self.threshold_step, 0.0)
        for key in ("threshold", "target_acceptance", "acceptance_memory", "threshold_memory"):
            between(f"method.controller.{key}", getattr(self, key), 0.0, 1.0)


@schema("method/controller", "entropy")
@dataclass
class EntropyConfig(AdaptiveConfig):
    """Stop once 1 - sqrt(`entropy_scale` * entropy) of the draft falls below the threshold (SVIP, AdaEDL).

    `distribution`: `raw` = at temperature 1, `warped` = as it is sampled from.
    """

    entropy_scale: float = MISSING
    distribution: str = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("method.controller.entropy_scale", self.entropy_scale, 0.0)
        one_of("method.controller.distribution", self.distribution, DISTRIBUTIONS)


@schema("method/controller", "draft_verify")
@dataclass
class DraftVerifyConfig(AdaptiveConfig):
    """Stop once the draft's probability of its token falls below a threshold that follows the acceptance.

    It starts at `threshold` when greedy, at `sampling_threshold` when sampling.
    """

    sampling_threshold: float = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        between("method.controller.sampling_threshold", self.sampling_threshold, 0.0, 1.0)


@schema("method/controller", "tuned")
@dataclass
class TunedConfig(CappedConfig):
    """The fixed length that was best on held-out prompts, at most `num_draft_tokens`.

    `artefact`: the card that holds it (null = the stored one of this pair and setting).
    """

    artefact: Optional[str] = None  # noqa: UP045


@dataclass
class TrainedConfig(CappedConfig):
    """A trained classifier: stop once the chance that the whole draft is accepted falls below `threshold`.

    `threshold` auto = the artefact's. At least `min_draft_tokens` are drafted. `artefact`: the card of the trained part
    (null = the stored one of this pair and setting).
    """

    threshold: Union[float, str] = MISSING  # noqa: UP007
    min_draft_tokens: int = MISSING
    artefact: Optional[str] = None  # noqa: UP045

    def __post_init__(self) -> None:
        super().__post_init__()
        between("method.controller.min_draft_tokens", self.min_draft_tokens, 1, self.num_draft_tokens)
        if isinstance(self.threshold, str):
            one_of("method.controller.threshold", self.threshold, ("auto", "a number from 0 to 1"))
        else:
            between("method.controller.threshold", self.threshold, 0.0, 1.0)


@schema("method/controller", "scalars")
@dataclass
class ScalarsConfig(TrainedConfig):
    """A classifier over log-probability, entropy, margin and position, asked after every `block_size` tokens."""

    block_size: int = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        between("method.controller.block_size", self.block_size, 1, self.num_draft_tokens)


@schema("method/controller", "specdecpp")
@dataclass
class SpecDecPPConfig(TrainedConfig):
    """SpecDec++: a head over the state that has read a token (`state` own) or that predicted it (predictor)."""

    state: str = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("method.controller.state", self.state, STATES)


@schema("method/controller", "pacer")
@dataclass
class PacerConfig(CappedConfig):
    """PACER-style: a gate over the draft's states judges every block of `block_size` tokens.

    `block_size`, `threshold`, `threshold_growth` auto = the gate's card (for a given block size its best at that size),
    which also keeps the cap at or below `num_draft_tokens`. Drafting goes on while `agg` of a block's chances is at
    least min(`threshold_max`, `threshold` * `threshold_growth` ^ (block - 1)); rule `cost`: while a block more is worth
    its time. At least `min_draft_tokens` (null = one block) are drafted. `label` (what its chances mean), `feature`,
    `scope`, `scalars`, `mask`, `num_layers`, `step_pos` and `width_divisor` name the gate. `artefact`: its card (null =
    the stored one of this pair and setting).
    """

    block_size: Union[int, str] = MISSING  # noqa: UP007
    threshold: Union[float, int, str] = MISSING  # noqa: UP007
    threshold_growth: Union[float, int, str] = MISSING  # noqa: UP007
    threshold_max: float = MISSING
    min_draft_tokens: Optional[int] = None  # noqa: UP045
    agg: str = MISSING
    rule: str = MISSING
    label: str = MISSING
    feature: str = MISSING
    scope: str = "step"
    scalars: bool = MISSING
    mask: str = MISSING
    num_layers: int = MISSING
    step_pos: bool = MISSING
    width_divisor: int = 1
    artefact: Optional[str] = None  # noqa: UP045

    def __post_init__(self) -> None:
        super().__post_init__()
        choices = {"label": LABELS, "feature": FEATURES, "scope": SCOPES, "mask": MASKS, "rule": RULES}
        for key, legal in choices.items():
            one_of(f"method.controller.{key}", getattr(self, key), legal)
        _auto_or("block_size", self.block_size, 1, self.num_draft_tokens)
        _auto_or("threshold", self.threshold, 0.0, 1.0)
        _auto_or("threshold_growth", self.threshold_growth, 1.0, 10.0)
        between("method.controller.threshold_max", self.threshold_max, 0.0, 1.0)
        at_least("method.controller.num_layers", self.num_layers, 1)
        at_least("method.controller.width_divisor", self.width_divisor, 1)
        if self.min_draft_tokens is not None:
            between("method.controller.min_draft_tokens", self.min_draft_tokens, 1, self.num_draft_tokens)
        self._check_pairs()

    def _check_pairs(self) -> None:
        """What goes with what."""
        if self.rule == "cost":
            one_of("with method.controller.rule=cost, method.controller.label", self.label, LABELS[1:])
        else:
            one_of(
                f"with method.controller.label={self.label}, method.controller.agg", self.agg, AGGREGATIONS[self.label]
            )
        if self.mask == "block_causal":  # a block's newest state would be missing from it
            one_of("with method.controller.mask=block_causal, method.controller.feature", self.feature, FEATURES[:1])


def _auto_or(name: str, value: float | str, low: float, high: float) -> None:
    if isinstance(value, str):
        one_of(f"method.controller.{name}", value, ("auto", f"a number from {low:g} to {high:g}"))
    else:
        between(f"method.controller.{name}", value, low, high)


@schema("method/controller", "block_oracle")
@dataclass
class BlockOracleConfig(CappedConfig):
    """A bound: stop after the first block of `block_size` tokens that differs from AR's answer. Greedy only."""

    bound: ClassVar[bool] = True

    block_size: int = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        between("method.controller.block_size", self.block_size, 1, self.num_draft_tokens)
