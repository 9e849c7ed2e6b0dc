"""Configurations of the training commands: what scripts/train_*.py take in place of a run."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import MISSING

from specbench.config.checks import at_least, between, not_empty, one_of
from specbench.config.parts import DataConfig, HardwareConfig, ModelConfig, PathsConfig
from specbench.config.store import schema
from specbench.types import ConfigError

STAGES = ("all", "data", "train")
DIVERGENCES = ("kl", "tv")
SOURCES = ("user", "article", "summary", "own_summary", "gsm8k", "mbpp", "completion", "instruction")


@dataclass
class CorpusConfig:
    """What the target answers: prompts by source (their numbers), and how it answers.

    `instructions` is a JSONL file of instructions (null = none). `greedy_fraction` of the prompts are answered
    greedily, the others at `temperature`. Lengths are in tokens. `batch_size` answers are decoded side by side, and
    `file_answers` are stored together.
    """

    prompts: dict[str, int] = field(default_factory=dict)
    instructions: str | None = None
    greedy_fraction: float = MISSING
    temperature: float = MISSING
    max_prompt_tokens: int = MISSING
    max_new_tokens: int = MISSING
    article_tokens: int = MISSING
    turn_tokens: int = MISSING
    batch_size: int = MISSING
    file_answers: int = MISSING

    def __post_init__(self) -> None:
        for name, count in self.prompts.items():
            one_of("corpus.prompts", name, SOURCES)
            at_least(f"corpus.prompts.{name}", count, 0)
        between("corpus.greedy_fraction", self.greedy_fraction, 0.0, 1.0)
        if not self.temperature > 0.0:
            raise ConfigError(f"corpus.temperature={self.temperature}: must be above 0")
        for key in (
            "max_prompt_tokens",
            "max_new_tokens",
            "article_tokens",
            "turn_tokens",
            "batch_size",
            "file_answers",
        ):
            at_least(f"corpus.{key}", getattr(self, key), 1)


@dataclass
class DistilConfig:
    """How the draft is made from the target and trained.

    `layers`: target layers that it starts from (negative = from the end), one draft layer each. `vocab_size`: tokens
    that it can draft (null = all). `batch_tokens`: rows of a batch, prompt and padding included. Held out is one
    prompt in `held_out_every`, of which `held_out` greedy answers are replayed with `num_draft_tokens` a step.
    """

    layers: list[int] = field(default_factory=list)
    vocab_size: int | None = MISSING
    divergence: str = MISSING
    epochs: int = MISSING
    batch_tokens: int = MISSING
    learning_rate: float = MISSING
    warmup: float = MISSING
    weight_decay: float = MISSING
    clip: float = MISSING
    held_out_every: int = MISSING
    held_out: int = MISSING
    num_draft_tokens: int = MISSING
    evaluate_every: int = MISSING
    checkpoint_every: int = MISSING

    def __post_init__(self) -> None:
        if not self.layers:
            raise ConfigError("training.layers=[]: name at least one layer of the target, for example [0,1,-1]")
        at_least("training.vocab_size", self.vocab_size, 2, null="the whole vocabulary")
        one_of("training.divergence", self.divergence, DIVERGENCES)
        for key in ("epochs", "batch_tokens", "held_out", "num_draft_tokens", "evaluate_every", "checkpoint_every"):
            at_least(f"training.{key}", getattr(self, key), 1)
        at_least("training.held_out_every", self.held_out_every, 2)
        for key in ("learning_rate", "weight_decay", "clip"):
            at_least(f"training.{key}", getattr(self, key), 0.0)
        between("training.warmup", self.warmup, 0.0, 1.0)


@schema("train_draft")
@dataclass
class TrainDraftConfig:
    """One draft: `name` is its folder below paths.cache_dir/drafts; `stage` is data, train, or all = both."""

    model: ModelConfig = MISSING
    data: DataConfig = MISSING
    hardware: HardwareConfig = MISSING
    paths: PathsConfig = MISSING
    corpus: CorpusConfig = MISSING
    training: DistilConfig = MISSING
    name: str = MISSING
    stage: str = "all"
    seed: int = 0

    def __post_init__(self) -> None:
        not_empty("name", self.name, "smollm2")
        one_of("stage", self.stage, STAGES)
        at_least("seed", self.seed, 0)
