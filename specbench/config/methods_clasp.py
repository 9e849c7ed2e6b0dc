"""CLaSp: what its configuration may say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Union

from omegaconf import MISSING

from specbench.config.checks import at_least, between, one_of
from specbench.config.methods import MethodConfig
from specbench.config.store import schema
from specbench.types import ConfigError

BEFORE_FIRST_SET = ("ar", "full_model")


@schema("method", "clasp")
@dataclass
class ClaspConfig(MethodConfig):
    """CLaSp: drafts without `num_skip_layers` whole layers, chosen anew by a dynamic program on one token's states.

    `num_skip_layers` is a number, or `auto` = the share `skip_share` of the layers, rounded. The search runs after
    steps 1, 1 + `optimize_interval`, ... of every prompt. `before_first_set`: what happens until then, plain steps
    (`ar`) or drafts by the whole model (`full_model`). `carry_over`: a set outlives its prompt, as long as
    `method.scope` says. `skip_set`: a file or a list of sublayers that is used without any search.
    """

    takes_controller: ClassVar[bool] = True

    num_skip_layers: Union[int, str] = MISSING  # noqa: UP007  (OmegaConf reads this form only)
    skip_share: float = MISSING
    optimize_interval: int = MISSING
    before_first_set: str = MISSING
    carry_over: bool = MISSING
    skip_set: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.num_skip_layers, str):
            if self.num_skip_layers != "auto":
                raise ConfigError(f"method.num_skip_layers={self.num_skip_layers}: must be a number or auto")
        else:
            at_least("method.num_skip_layers", self.num_skip_layers, 1)
        between("method.skip_share", self.skip_share, 0.0, 1.0)
        at_least("method.optimize_interval", self.optimize_interval, 2)  # step 1 comes after the first of all
        one_of("method.before_first_set", self.before_first_set, BEFORE_FIRST_SET)
        if self.skip_set is not None and not isinstance(self.skip_set, str | list):
            raise ConfigError(f"method.skip_set={self.skip_set}: must be a file, a list of sublayers, or null")
