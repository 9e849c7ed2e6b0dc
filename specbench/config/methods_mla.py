"""MLA drafts: what the configuration of a conversion and of its use may say."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Union

from omegaconf import MISSING

from specbench.config.checks import at_least, between, one_of
from specbench.config.methods import MethodConfig
from specbench.config.store import schema
from specbench.types import ConfigError

CONVERTERS = ("transmla", "mha2mla", "svd", "care", "none")
FACTORS = ("whitened", "svd")
RANKS = ("uniform", "care")
SELECTORS = ("2norm", "high", "low", "uniform")
LATENTS = ("joint", "split", "only_key", "only_value")
BIAS_MODES = ("exact", "latent")
RECONSTRUCTIONS = ("functional", "none", "kv")
TRAIN_PARAMS = ("qkv", "qk", "qk_down")
STREAMS = ("frozen", "converted")
SOURCES = ("auto", "draft", "target")
TEXTS = ("gsm8k", "mbpp", "cnn_dm", "documentation", "longdoc")

_NOT_CONVERSION = (*(f.name for f in fields(MethodConfig)), "folder", "source")
# What method.converter=none means: one run, whatever the other keys of a sweep say.
_UNCONVERTED = {
    "factor": None,
    "ranks": None,
    "budget": 1.0,
    "rank": None,
    "rope_dim": None,
    "rope_select": "2norm",
    "latent": "joint",
    "freqfold": "auto",
    "balance": 1.0,
    "bias_mode": "exact",
    "reconstruction": "none",
    "train_params": "qkv",
    "folder": None,
}


@dataclass
class CalibrationConfig:
    """The text that a conversion learns from: `num_sequences` + `held_out` sequences of `sequence_length` tokens.

    `sources`: train splits of tasks, the standard library's documentation strings, or the task longdoc's own texts;
    what the run's data source does not have is left out. `seed` orders them.
    """

    sources: list[str] = field(default_factory=list)
    num_sequences: int = MISSING
    sequence_length: int = MISSING
    held_out: int = MISSING
    seed: int = MISSING

    def __post_init__(self) -> None:
        if not self.sources:
            raise ConfigError(f"method.calibration.sources=[]: name at least one of {', '.join(TEXTS)}")
        for name in self.sources:
            one_of("method.calibration.sources", name, TEXTS)
        for key in ("num_sequences", "held_out"):
            at_least(f"method.calibration.{key}", getattr(self, key), 1)
        at_least("method.calibration.sequence_length", self.sequence_length, 2)
        at_least("method.calibration.seed", self.seed, 0)


@dataclass
class ReconstructConfig:
    """How a layer is tuned: `updates` AdamW steps of `batch` sequences, float32, on one layer at a time.

    `stream`: hidden states of the original model, or of the layers converted and tuned so far. `learning_rate` null =
    by hidden size. `warmup` share of the updates, then a cosine to 0; `clip`: norm of the gradient. Held-out error is
    looked at `checks` times, the best is kept, and a layer ends early when two checks gained less than the share
    `min_gain` (0 = never).
    """

    stream: str = MISSING
    updates: int = MISSING
    batch: int = MISSING
    learning_rate: float | None = None
    warmup: float = MISSING
    clip: float = MISSING
    checks: int = MISSING
    min_gain: float = MISSING
    seed: int = MISSING

    def __post_init__(self) -> None:
        one_of("method.reconstruct.stream", self.stream, STREAMS)
        for key in ("updates", "batch", "checks"):
            at_least(f"method.reconstruct.{key}", getattr(self, key), 1)
        at_least("method.reconstruct.learning_rate", self.learning_rate, 0.0, null="the default of the hidden size")
        between("method.reconstruct.warmup", self.warmup, 0.0, 1.0)
        between("method.reconstruct.min_gain", self.min_gain, 0.0, 1.0)
        at_least("method.reconstruct.clip", self.clip, 0.0)
        at_least("method.reconstruct.seed", self.seed, 0)


# What method.reconstruct says where nothing is tuned: the numbers of conf/method/mla.yaml, whatever a sweep says.
_UNTUNED = ReconstructConfig(
    stream="frozen", updates=200, batch=8, learning_rate=None, warmup=0.05, clip=1.0, checks=5, min_gain=0.01, seed=0
)


@schema("method", "mla")
@dataclass
class MlaConfig(MethodConfig):
    """Speculative sampling with a draft whose attention was converted to multi-head latent attention.

    `source`: what is converted: the model's draft, its target, or auto = the draft where there is one. `folder`: a
    converted draft made by scripts/convert_mla.py; the other keys then say nothing. `converter=care` stands for
    mha2mla with factor=whitened and ranks=care; `none` drafts with the unconverted model. `budget`: size of the cache
    as a share of the original's; `rank` null = from the budget. `rope_dim`: rotated width a rotated head (null = by
    converter), `rope_select` which pairs (mha2mla), `latent`: one latent for keys and values or two, `freqfold`:
    neighbouring frequencies rotated together (transmla; auto = by held-out perplexity), `balance`: weight of values
    against keys (transmla), `bias_mode`: biases beside or inside the latent.
    """

    needs_draft: ClassVar[bool] = True
    takes_controller: ClassVar[bool] = True
    converts: ClassVar[bool] = True
    replayable: ClassVar[bool] = True
    drafts_alike: ClassVar[bool] = True  # the draft's own revision says how it was converted

    source: str = MISSING
    folder: str | None = None
    converter: str = MISSING
    factor: str | None = None
    ranks: str | None = None
    budget: float = MISSING
    rank: int | None = None
    rope_dim: int | None = None
    rope_select: str = MISSING
    latent: str = MISSING
    freqfold: Union[int, str] = MISSING  # noqa: UP007  (OmegaConf reads this form only)
    balance: float = MISSING
    bias_mode: str = MISSING
    reconstruction: str = MISSING
    train_params: str = MISSING
    reconstruct: ReconstructConfig = MISSING
    calibration: CalibrationConfig = MISSING

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("method.converter", self.converter, CONVERTERS)
        if self.converter == "none":
            for key, value in _UNCONVERTED.items():
                setattr(self, key, value)
        else:
            self._resolve()
        one_of("method.source", self.source, SOURCES)
        one_of("method.rope_select", self.rope_select, SELECTORS)
        one_of("method.latent", self.latent, LATENTS)
        one_of("method.bias_mode", self.bias_mode, BIAS_MODES)
        one_of("method.reconstruction", self.reconstruction, RECONSTRUCTIONS)
        one_of("method.train_params", self.train_params, TRAIN_PARAMS)
        if self.reconstruction == "none":  # one conversion, whatever a sweep says of tuning
            self.train_params, self.reconstruct = TRAIN_PARAMS[0], replace(_UNTUNED)
        self._check_numbers()

    def _resolve(self) -> None:
        """Say in full what `care` and null stand for, so that equal conversions have equal configs."""
        if self.converter == "care":
            for key, wanted in (("factor", "whitened"), ("ranks", "care")):
                if getattr(self, key) not in (None, wanted):
                    raise ConfigError(
                        f"method.{key}={getattr(self, key)}: method.converter=care means method.{key}={wanted}; "
                        "choose method.converter=mha2mla to combine freely"
                    )
            self.converter, self.factor, self.ranks = "mha2mla", "whitened", "care"
        self.factor, self.ranks = self.factor or FACTORS[0], self.ranks or RANKS[0]
        one_of("method.factor", self.factor, FACTORS)
        one_of("method.ranks", self.ranks, RANKS)
        if self.ranks == "care" and self.latent != "joint":
            raise ConfigError(f"method.latent={self.latent}: method.ranks=care needs one latent (method.latent=joint)")

    def _check_numbers(self) -> None:
        if not 0.0 < self.budget <= 1.0:
            raise ConfigError(f"method.budget={self.budget}: must be above 0 and at most 1 (the original's cache)")
        at_least("method.rank", self.rank, 1, null="the rank that fits the budget")
        at_least("method.rope_dim", self.rope_dim, 2, null="the converter's default")
        if self.rope_dim is not None and self.rope_dim % 2:
            raise ConfigError(f"method.rope_dim={self.rope_dim}: must be even, since pairs of numbers are rotated")
        if isinstance(self.freqfold, str):
            if self.freqfold != "auto":
                raise ConfigError(f"method.freqfold={self.freqfold}: must be a number of frequencies or auto")
        else:
            at_least("method.freqfold", self.freqfold, 1)
        if not self.balance > 0.0:
            raise ConfigError(f"method.balance={self.balance}: must be above 0")

    def conversion(self) -> dict[str, Any]:
        """The keys that decide the converted weights, for a cache key and for the card."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NOT_CONVERSION}
