"""Controllers: who says when to stop drafting. One dataclass a controller; `_target_` is the class that does it."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from specbench.config.checks import at_least, between
from specbench.config.store import schema


@dataclass
class ControllerConfig:
    """What every controller has: `_target_` (path of its class) and `name` (what the user types)."""

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
class HeuristicConfig(CappedConfig):
    """Start with `start` tokens; `grow` more after a fully accepted draft, else `shrink` fewer, within 1 and the cap.

    The length lives as long as `method.scope` says: sample = anew for every prompt, run = carried over.
    """

    start: int = MISSING
    grow: int = MISSING
    shrink: int = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        between("method.controller.start", self.start, 1, self.num_draft_tokens)
        at_least("method.controller.grow", self.grow, 0)
        at_least("method.controller.shrink", self.shrink, 0)


@schema("method/controller", "confidence")
@dataclass
class ConfidenceConfig(CappedConfig):
    """Stop once the drafter's probability of its own token falls below `threshold`."""

    threshold: float = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        between("method.controller.threshold", self.threshold, 0.0, 1.0)
