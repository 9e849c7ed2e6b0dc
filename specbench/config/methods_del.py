"""DEL: what its configuration may say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from omegaconf import MISSING

from specbench.config.checks import at_least, between, one_of
from specbench.config.methods import MethodConfig
from specbench.config.store import schema
from specbench.types import ConfigError

DRAFT_LENGTH_MODES = ("planned", "fixed_gamma")
NAN_GUARDS = ("no_stop", "by_class")


@schema("method", "del")
@dataclass
class DelConfig(MethodConfig):
    """DEL: drafts with the first layers of the target; how many, and how many tokens, is chosen after every step.

    `exit_layer` layers and `num_draft_tokens_init` tokens start; `omega` is the decay of the counters. Lengths
    `planned_length_min`..`planned_length_max` are compared; `draft_length_mode=planned` drafts the chosen length,
    `fixed_gamma` always up to the controller's cap. `prompt_shadow_columns`: prompt positions learnt from in the first
    step. `nan_guard`: an exit with only hits or only misses so far has no threshold; `no_stop` = it never stops,
    `by_class` = only misses stop after one token. While nothing is drafted, every `idle_interval`-th step is learnt
    from. `count_head`: the cost of the output head takes part in the choice. `shadow_chunk_rows`: rows of logits held
    at once.
    """

    takes_controller: ClassVar[bool] = True

    exit_layer: int = MISSING
    num_draft_tokens_init: int = MISSING
    omega: float = MISSING
    planned_length_min: int = MISSING
    planned_length_max: int = MISSING
    draft_length_mode: str = MISSING
    prompt_shadow_columns: int = MISSING
    nan_guard: str = MISSING
    idle_interval: int = MISSING
    count_head: bool = MISSING
    shadow_chunk_rows: int = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("method.exit_layer", self.exit_layer, 1)
        at_least("method.num_draft_tokens_init", self.num_draft_tokens_init, 0)
        between("method.omega", self.omega, 0.0, 1.0)
        at_least("method.planned_length_min", self.planned_length_min, 0)
        if self.planned_length_max < self.planned_length_min:
            raise ConfigError(
                f"method.planned_length_max={self.planned_length_max}: "
                f"must be method.planned_length_min={self.planned_length_min} or more"
            )
        one_of("method.draft_length_mode", self.draft_length_mode, DRAFT_LENGTH_MODES)
        at_least("method.prompt_shadow_columns", self.prompt_shadow_columns, 0)
        one_of("method.nan_guard", self.nan_guard, NAN_GUARDS)
        at_least("method.idle_interval", self.idle_interval, 1)
        at_least("method.shadow_chunk_rows", self.shadow_chunk_rows, 1)
