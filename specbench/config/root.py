"""The whole configuration of one run, and the checks that concern more than one part."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import MISSING

from specbench.config.checks import at_least, one_of
from specbench.config.methods import MethodConfig, replayable_methods
from specbench.config.parts import (
    ArtefactConfig,
    DataConfig,
    HardwareConfig,
    LoggerConfig,
    MeasureConfig,
    ModelConfig,
    PathsConfig,
    SamplingConfig,
    TaskConfig,
)
from specbench.config.sizes import SIZES
from specbench.config.store import schema
from specbench.types import ConfigError

OBJECTIVES = (
    "walltime_speedup",
    "end_to_end_speedup",
    "median_speedup",
    "tokens_per_second",
    "acceptance_rate",
    "mat",
)


@schema("run")
@dataclass
class RunConfig:
    """One run: `num_samples` null = all; `objective` is the number given back to a sweeper.

    `size` and `experiment_name` say how big which experiment was run; neither makes it another run.
    """

    model: ModelConfig = MISSING
    method: MethodConfig = MISSING
    task: TaskConfig = MISSING
    data: DataConfig = MISSING
    sampling: SamplingConfig = MISSING
    hardware: HardwareConfig = MISSING
    measure: MeasureConfig = MISSING
    logger: LoggerConfig = MISSING
    paths: PathsConfig = MISSING
    artefact: ArtefactConfig = field(default_factory=ArtefactConfig)
    num_samples: int | None = 8
    seed: int = 0
    size: str = "embedded"
    experiment_name: str | None = None
    objective: str = "walltime_speedup"
    dry_run: bool = False

    def __post_init__(self) -> None:
        at_least("num_samples", self.num_samples, 1, null="all samples")
        at_least("seed", self.seed, 0)
        one_of("size", self.size, SIZES)
        one_of("objective", self.objective, OBJECTIVES)
        self._check_bound()
        self._check_replay()
        if self.method.needs_draft and not self.method.converts and self.model.draft is None:
            raise ConfigError(
                f"model.draft=null: method={self.method.name} needs a draft model and model={self.model.name} names "
                "none; set model.draft=HUB_ID_OR_FOLDER or choose a model with one (model=tiny, llama3, qwen3_8b, ...)"
            )

    def _check_replay(self) -> None:
        """A replay knows the draft's first choice after each prefix of AR's answer, and nothing else."""
        if self.measure.acceptance != "replay":
            return
        given = "measure.acceptance=replay"
        if not self.method.replayable:
            legal = ", ".join(replayable_methods())
            raise ConfigError(f"{given}: steps of method={self.method.name} cannot be replayed; legal with it: {legal}")
        if self.method.controller.name != "fixed":
            raise ConfigError(
                f"{given}: needs drafts of one length, method/controller=fixed, not {self.method.controller.name}"
            )
        if self.sampling.temperature > 0:
            raise ConfigError(f"{given}: is exact for greedy decoding only; set sampling.temperature=0")

    @property
    def answer_tokens(self) -> int:
        """Most tokens of a turn's answer; where no length is given, composing has put the default in."""
        assert self.sampling.max_new_tokens is not None, "only composed configurations are run"
        return self.sampling.max_new_tokens

    @property
    def needed_models(self) -> list[str]:
        """Keys of `model.sources` that the method loads."""
        return ["model.target", "model.draft"] if self.method.needs_draft else ["model.target"]

    def _check_bound(self) -> None:
        """A part that knows AR's answer needs one, and is no bound where the answer is drawn."""
        name = self.method.controller.name
        if self.method.controller.bound and self.sampling.temperature > 0:
            raise ConfigError(
                f"sampling.temperature={self.sampling.temperature}: method/controller={name} is a bound for greedy "
                "decoding only; set sampling.temperature=0 or choose another controller"
            )
        if self.method.controller.bound and self.measure.baseline == "none":
            raise ConfigError(
                f"measure.baseline=none: method/controller={name} needs AR's answer; legal with it: paired, stored"
            )
