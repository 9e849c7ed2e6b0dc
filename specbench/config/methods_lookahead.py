"""Lookahead and Ouroboros: what their configurations may say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from omegaconf import MISSING

from specbench.config.checks import at_least, one_of
from specbench.config.methods import MethodConfig
from specbench.config.store import schema
from specbench.types import ConfigError

MAX_ROWS = 256  # cache rows that a decode keeps free behind the committed ones
VARIANTS = ("library", "spec_bench")
SUFFIX_POLICIES = ("always", "only_if_passed")
OVERSHOOTS = ("extend", "carry")
BLOCK_UNITS = ("tokens", "draft_forwards")
ON_FAIL = ("submit_all", "drop_block")


@dataclass
class PhraseConfig(MethodConfig):
    """What both share: lookahead decoding's window and its pool of phrases.

    `level`: phrases have level - 1 tokens. `window`: columns of the window, each may yield a phrase a pass.
    `guess_set`: phrases kept after one token. `take_perfect_bonus`: after a phrase that matches completely the model's
    next token is taken as well. `window_seed`: of the generator that draws the first window from the prompt.
    """

    level: int = MISSING
    window: int = MISSING
    guess_set: int = MISSING
    take_perfect_bonus: bool = MISSING
    window_seed: int = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("method.level", self.level, 3)
        at_least("method.window", self.window, 1)
        at_least("method.guess_set", self.guess_set, 1)

    @property
    def rows(self) -> int:
        """The most rows behind the last token in one pass of lookahead decoding."""
        filling = max((n + 1) * (self.window + self.level - 2 - n) - 1 for n in range(self.level - 2))
        return max(filling, (self.level - 1) * (self.window + self.guess_set) - 1)


@schema("method", "lookahead")
@dataclass
class LookaheadConfig(PhraseConfig):
    """Lookahead decoding on the target itself; no draft model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rows > MAX_ROWS:
            raise ConfigError(
                f"method.level={self.level} method.window={self.window} method.guess_set={self.guess_set}: "
                f"(level - 1) * (window + guess_set) - 1 = {self.rows} rows a pass; at most {MAX_ROWS} are legal"
            )


@dataclass
class SuffixConfig:
    """Phrases after the draft: the `k` newest after its last token; `policy` only_if_passed leaves them out where the
    controller stopped the draft."""

    k: int = 3
    policy: str = "always"

    def __post_init__(self) -> None:
        at_least("method.suffix.k", self.k, 0)
        one_of("method.suffix.policy", self.policy, SUFFIX_POLICIES)


@schema("method", "ouroboros")
@dataclass
class OuroborosConfig(PhraseConfig):
    """A draft model that decodes with lookahead, and phrases that lengthen its drafts.

    `suffix`: the phrases after the draft. `variant`: which published rule learns phrases from a verification.
    `truncate_overshoot`: a pass of the draft can give more tokens than the controller allows; true drops them.
    For controllers that look at blocks: `block_unit` tokens | draft_forwards is what block sizes count,
    `block_overshoot` extend = a block ends with a pass of the draft, carry = its tokens beyond the block size begin
    the next block. `on_fail`: the block that ends drafting is verified (submit_all) or left out (drop_block, greedy
    decoding only).
    """

    needs_draft: ClassVar[bool] = True
    takes_controller: ClassVar[bool] = True
    # Whatever the options, the draft model's own tokens are drafted: what was trained with one setting serves all.
    drafts_alike: ClassVar[bool] = True

    suffix: SuffixConfig = field(default_factory=SuffixConfig)
    variant: str = MISSING
    truncate_overshoot: bool = MISSING
    block_overshoot: str = "extend"
    block_unit: str = "tokens"
    on_fail: str = "submit_all"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("method.variant", self.variant, VARIANTS)
        one_of("method.block_overshoot", self.block_overshoot, OVERSHOOTS)
        one_of("method.block_unit", self.block_unit, BLOCK_UNITS)
        one_of("method.on_fail", self.on_fail, ON_FAIL)
        if self.suffix.k * (self.level - 1) > MAX_ROWS:
            raise ConfigError(
                f"method.suffix.k={self.suffix.k} method.level={self.level}: k * (level - 1) rows after the draft; at "
                f"most {MAX_ROWS} are legal"
            )
