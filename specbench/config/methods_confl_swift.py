"""ConfLayers and SWIFT: what their configurations may say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Union

from omegaconf import MISSING

from specbench.config.checks import at_least, between, one_of
from specbench.config.methods import MethodConfig
from specbench.config.store import schema
from specbench.types import ConfigError

_SEARCH_ROWS = 256  # cache rows that a decode keeps free behind the committed ones


@dataclass
class TreeConfig:
    """Siblings beside every drafted token, fewer where the draft is sure.

    `max_nodes`: tree rows, 1 = a chain, `auto` = as many siblings as make verification of the chain at most the share
    `max_overhead` dearer, by the measured t(T). `widths_*[i]` candidates where the token's probability is above
    `thresholds[i]`, the last width below all.
    """

    max_nodes: Union[int, str] = "auto"  # noqa: UP007  (OmegaConf reads this form only)
    max_overhead: float = 0.1
    thresholds: list[float] = field(default_factory=lambda: [0.95, 0.8, 0.5])
    widths_greedy: list[int] = field(default_factory=lambda: [3, 5, 8, 10])
    widths_sampling: list[int] = field(default_factory=lambda: [1, 3, 5, 10])

    def __post_init__(self) -> None:
        if isinstance(self.max_nodes, str):
            if self.max_nodes != "auto":
                raise ConfigError(f"method.tree.max_nodes={self.max_nodes}: must be a number or auto")
        else:
            between("method.tree.max_nodes", self.max_nodes, 1, _SEARCH_ROWS - 1)
        at_least("method.tree.max_overhead", self.max_overhead, 0.0)
        for key, widths in (("widths_greedy", self.widths_greedy), ("widths_sampling", self.widths_sampling)):
            if len(widths) != len(self.thresholds) + 1 or min(widths) < 1:
                raise ConfigError(
                    f"method.tree.{key}={list(widths)}: must be one number more than method.tree.thresholds, each 1 "
                    "or more"
                )


@dataclass
class SkipSearchConfig(MethodConfig):
    """What ConfLayers and SWIFT share: a skip set searched while decoding, over a window of generated tokens.

    `initial_set`: what is skipped before the first choice, every odd layer (`uniform`), the stored set of this very
    model or else `uniform` (`auto`), or nothing is drafted (`none`). `skip_ratio`: share of the layers (ConfLayers) or
    sublayers (SWIFT) between the first and the last. `skip_set`: a file or a list of sublayers that is used without
    any search.
    """

    takes_controller: ClassVar[bool] = True

    tree: TreeConfig = field(default_factory=TreeConfig)
    initial_set: str = MISSING
    context_window: int = MISSING
    skip_ratio: float = MISSING
    max_opt_iter: int = MISSING
    max_score: float = MISSING
    skip_set: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("method.initial_set", self.initial_set, ("auto", "uniform", "none"))
        at_least("method.context_window", self.context_window, 1)
        between("method.skip_ratio", self.skip_ratio, 0.0, 1.0)
        at_least("method.max_opt_iter", self.max_opt_iter, 1)
        at_least("method.max_score", self.max_score, 0.0)
        if self.skip_set is not None and not isinstance(self.skip_set, str | list):
            raise ConfigError(f"method.skip_set={self.skip_set}: must be a file, a list of sublayers, or null")


@schema("method", "confl")
@dataclass
class ConflConfig(SkipSearchConfig):
    """ConfLayers: skips the layers whose outputs are less peaked than their neighbours'.

    Choosing: `confidence_source` module_outputs | lm_head, `select_dtype`, `context_anchor` contiguous | prompt (the
    window read right behind the prompt), `window_mode` adaptive | a fixed width added to `window_base`,
    `window_gain`, `bound_gain_on_qwen` (gain at most a third of the layers). Judging: a set is judged after
    `search_interval` + 1 steps, sooner if it is bad (`early_abort` half | exact_half | never); the search ends when
    more than `min_acc_for_stop` tokens a step and a share of `max_score` are accepted, or after `max_opt_iter`
    choices with the best set seen, else `fallback_set` uniform | last | empty. `lambda_mode` fixed | adaptive: adaptive
    moves lambda by `lambda_step` where a set leaves [skip_ratio, skip_ratio + ratio_band]. `min_set` at_least | above:
    how a set's share compares with skip_ratio to be judged at all. `keep_history`: judged steps may span prompts.
    """

    search_interval: int = MISSING
    min_acc_for_stop: float = MISSING
    lambda_mode: str = MISSING
    lambda_init: float = MISSING
    lambda_step: float = MISSING
    ratio_band: float = MISSING
    window_mode: Union[int, str] = MISSING  # noqa: UP007  (OmegaConf reads this form only)
    window_base: int = MISSING
    window_gain: int = MISSING
    bound_gain_on_qwen: bool = MISSING
    early_abort: str = MISSING
    min_set: str = MISSING
    fallback_set: str = MISSING
    keep_history: bool = MISSING
    confidence_source: str = MISSING
    select_dtype: str = MISSING
    context_anchor: str = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("method.search_interval", self.search_interval, 1)
        at_least("method.min_acc_for_stop", self.min_acc_for_stop, 0.0)
        one_of("method.lambda_mode", self.lambda_mode, ("fixed", "adaptive"))
        at_least("method.lambda_step", self.lambda_step, 0.0)
        at_least("method.ratio_band", self.ratio_band, 0.0)
        at_least("method.window_base", self.window_base, 0)
        at_least("method.window_gain", self.window_gain, 0)
        one_of("method.early_abort", self.early_abort, ("half", "exact_half", "never"))
        one_of("method.min_set", self.min_set, ("at_least", "above"))
        one_of("method.fallback_set", self.fallback_set, ("uniform", "last", "empty"))
        one_of("method.confidence_source", self.confidence_source, ("module_outputs", "lm_head"))
        one_of("method.select_dtype", self.select_dtype, ("float16", "float32", "float64"))
        one_of("method.context_anchor", self.context_anchor, ("contiguous", "prompt"))
        if isinstance(self.window_mode, str):
            if self.window_mode != "adaptive":
                raise ConfigError(f"method.window_mode={self.window_mode}: must be a number or adaptive")
        else:
            at_least("method.window_mode", self.window_mode, 0)
        if self.context_anchor == "prompt" and self.context_window > _SEARCH_ROWS:
            raise ConfigError(
                f"method.context_window={self.context_window}: must be at most {_SEARCH_ROWS} with "
                "method.context_anchor=prompt"
            )


@schema("method", "swift")
@dataclass
class SwiftConfig(SkipSearchConfig):
    """SWIFT: random and Bayesian proposals of sublayers to skip, scored on the first generated tokens.

    A candidate is tried every `opt_interval` steps and scored by how many of the `context_window` tokens it predicts.
    Every `bayes_interval`-th is proposed by a Gaussian process when `bayes` is true: noise `gp_alpha`, `gp_restarts`
    restarts of its fit, upper confidence bound with `kappa`, maximised over `acquisition_samples` random points and
    from `acquisition_restarts` of them by gradient. The search ends above `max_score`, after more than
    `max_tolerance` candidates in a row without a gain, or after more than `max_opt_iter`. `search` false never
    searches. `candidate_seed` and `gp_seed` seed the proposals.
    """

    search: bool = MISSING
    opt_interval: int = MISSING
    max_tolerance: int = MISSING
    candidate_seed: int = MISSING
    bayes: bool = MISSING
    bayes_interval: int = MISSING
    kappa: float = MISSING
    gp_alpha: float = MISSING
    gp_restarts: int = MISSING
    gp_seed: int = MISSING
    acquisition_samples: int = MISSING
    acquisition_restarts: int = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, low in (("opt_interval", 1), ("max_tolerance", 0), ("candidate_seed", 0), ("bayes_interval", 1)):
            at_least(f"method.{key}", getattr(self, key), low)
        for key, low in (("gp_restarts", 0), ("gp_seed", 0), ("acquisition_samples", 1), ("acquisition_restarts", 0)):
            at_least(f"method.{key}", getattr(self, key), low)
        at_least("method.kappa", self.kappa, 0.0)
        if not self.gp_alpha > 0.0:
            raise ConfigError(f"method.gp_alpha={self.gp_alpha}: must be above 0")
        between("method.context_window", self.context_window, 1, _SEARCH_ROWS - 1)
