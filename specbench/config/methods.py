"""Methods: one dataclass a method, `_target_` is the class that decodes.

To add one: a dataclass here, a module in `specbench/methods/`, a YAML file in `conf/method/`. Values live in the YAML
files; here are the types, what is legal, and what the method needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Union

from omegaconf import MISSING

from specbench.config.checks import at_least, between, one_of
from specbench.config.controllers import ControllerConfig
from specbench.config.store import schema
from specbench.types import ConfigError

SCOPES = ("sample", "task", "run")
VERIFICATIONS = ("rejection", "sample_match")
MATCHES = ("first", "last", "longest")
ATTENTIONS = ("sdpa", "eager", "flash_attention_2")  # the last needs a GPU and its own package


@dataclass
class MethodConfig:
    """What every method has.

    `name` is what the user types (the YAML file's name), `scope` says how long learnt state lives, `verification` how
    a draft is accepted when sampling. Class variables: `needs_draft` (the model must name a draft) and
    `takes_controller` (False: `method/controller=none` is the only legal choice). `replayable`: the draft is a chain of
    one model's own first choices, so that with a fixed length its steps follow from AR's answer. `converts`: the draft
    is made from the model's own or, where it has none, from its target.
    """

    needs_draft: ClassVar[bool] = False
    takes_controller: ClassVar[bool] = False
    replayable: ClassVar[bool] = False
    converts: ClassVar[bool] = False

    _target_: str = MISSING
    name: str = MISSING
    scope: str = "sample"
    verification: str = "rejection"
    controller: ControllerConfig = MISSING

    def __post_init__(self) -> None:
        one_of("method.scope", self.scope, SCOPES)
        one_of("method.verification", self.verification, VERIFICATIONS)
        self._check_controller()

    def _check_controller(self) -> None:
        chosen = self.controller.name
        if chosen == "none" and self.takes_controller:
            raise ConfigError(
                f"method/controller=none: method={self.name} needs a controller that says when to stop drafting, "
                "for example method/controller=fixed"
            )
        if chosen != "none" and not self.takes_controller:
            raise ConfigError(
                f"method/controller={chosen}: method={self.name} takes no controller (only none); "
                f"methods that take one: {', '.join(methods_with_controller())}"
            )


@schema("method", "ar")
@dataclass
class ArConfig(MethodConfig):
    """Autoregressive decoding: the empty draft through the same loop."""


@schema("method", "pld")
@dataclass
class PldConfig(MethodConfig):
    """Prompt lookup: drafts what followed an earlier occurrence of the last tokens.

    The last `max_ngram` down to `min_ngram` tokens are looked up; `match` picks the occurrence; `num_draft_tokens` is
    a number, or `auto` = chosen from the measured cost t(T) of verifying T tokens, at most `max_draft_tokens`, starting
    from the guess that a token is accepted with probability `prior_acceptance`. `whole_continuation` accepts an
    occurrence only where all `num_draft_tokens` tokens after it are there.
    """

    min_ngram: int = MISSING
    max_ngram: int = MISSING
    num_draft_tokens: Union[int, str] = MISSING  # noqa: UP007  (OmegaConf reads this form only)
    match: str = MISSING
    whole_continuation: bool = False
    max_draft_tokens: int = 16
    prior_acceptance: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("method.min_ngram", self.min_ngram, 1)
        if self.max_ngram < self.min_ngram:
            raise ConfigError(f"method.max_ngram={self.max_ngram}: must be method.min_ngram={self.min_ngram} or more")
        one_of("method.match", self.match, MATCHES)
        at_least("method.max_draft_tokens", self.max_draft_tokens, 1)
        between("method.prior_acceptance", self.prior_acceptance, 0.0, 1.0)
        if isinstance(self.num_draft_tokens, str):
            if self.num_draft_tokens != "auto":
                raise ConfigError(f"method.num_draft_tokens={self.num_draft_tokens}: must be a number or auto")
        else:
            at_least("method.num_draft_tokens", self.num_draft_tokens, 1)


@schema("method", "sps")
@dataclass
class SpsConfig(MethodConfig):
    """Speculative sampling: a smaller draft model proposes, the target verifies."""

    needs_draft: ClassVar[bool] = True
    takes_controller: ClassVar[bool] = True
    replayable: ClassVar[bool] = True


@dataclass
class HfConfig(MethodConfig):
    """What the outside references share: `attn_implementation` is the library's name of the attention that it uses."""

    attn_implementation: str = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("method.attn_implementation", self.attn_implementation, ATTENTIONS)


@schema("method", "hf_ar")
@dataclass
class HfArConfig(HfConfig):
    """Outside reference: greedy or sampled `generate` of the transformers library."""


@schema("method", "hf_assisted")
@dataclass
class HfAssistedConfig(HfConfig):
    """Outside reference: assisted generation of the transformers library with the model's draft."""

    needs_draft: ClassVar[bool] = True

    num_assistant_tokens: int = MISSING
    schedule: str = MISSING
    assistant_confidence_threshold: float = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("method.num_assistant_tokens", self.num_assistant_tokens, 1)
        one_of("method.schedule", self.schedule, ("constant", "heuristic", "heuristic_transient"))
        at_least("method.assistant_confidence_threshold", self.assistant_confidence_threshold, 0.0)


@schema("method", "hf_pld")
@dataclass
class HfPldConfig(HfConfig):
    """Outside reference: prompt lookup of the transformers library."""

    max_ngram: int = MISSING
    num_draft_tokens: int = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("method.max_ngram", self.max_ngram, 1)
        at_least("method.num_draft_tokens", self.num_draft_tokens, 1)


def methods_with_controller() -> list[str]:
    """Names of the schemas whose method takes a controller."""
    return sorted(cls.__name__.removesuffix("Config").lower() for cls in _leaves(MethodConfig) if cls.takes_controller)


def replayable_methods() -> list[str]:
    """Names of the schemas whose steps follow from AR's answer."""
    return sorted(cls.__name__.removesuffix("Config").lower() for cls in _leaves(MethodConfig) if cls.replayable)


def _leaves(cls: type[MethodConfig]) -> list[type[MethodConfig]]:
    children = cls.__subclasses__()
    return [leaf for child in children for leaf in _leaves(child)] if children else [cls]
