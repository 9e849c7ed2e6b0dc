"""The parts of a run besides method and controller: model, task, data, sampling, hardware, measure, logger, paths."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass, field

from omegaconf import MISSING

from specbench.config.checks import at_least, between, not_empty, one_of
from specbench.config.store import schema
from specbench.types import ConfigError

SOURCES = ("auto", "hub", "local", "embedded")
DTYPES = ("float32", "bfloat16", "float16")
DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


@schema("model")
@dataclass
class ModelConfig:
    """A target, its draft (null = none) and what they are called.

    `target` and `draft` are a Hub id, a local folder, a .gguf file, `embedded:smollm2`, or a `tiny:` name. Revisions
    are null = resolved at load and recorded. `data` is the source that `data=auto` means for this model.
    `draft_vocab` is what a trained draft with a reduced vocabulary scores: its own tokens, or with the target's whole
    head all of them. `template_date` fixes the date variables of chat templates. `chat_template` (Jinja) is used only
    where the tokenizer brings none.
    """

    name: str = MISSING
    target: str = MISSING
    draft: str | None = None
    target_revision: str | None = None
    draft_revision: str | None = None
    draft_vocab: str = "own"
    data: str = "hub"
    template_date: str = "26 Jul 2024"
    chat_template: str | None = None
    display_name: str = MISSING

    def __post_init__(self) -> None:
        not_empty("model.target", self.target, "Qwen/Qwen3-8B")
        if self.draft is not None:
            not_empty("model.draft", self.draft, "Qwen/Qwen3-0.6B")
        one_of("model.draft_vocab", self.draft_vocab, ("own", "full"))
        one_of("model.data", self.data, SOURCES[1:])
        try:
            _ = self.template_day
        except ValueError:
            raise ConfigError(f"model.template_date={self.template_date}: must be a date like '26 Jul 2024'") from None

    @property
    def sources(self) -> dict[str, tuple[str | None, str | None]]:
        """Key -> what it names, and in which revision."""
        return {
            "model.target": (self.target, self.target_revision),
            "model.draft": (self.draft, self.draft_revision),
        }

    @property
    def template_day(self) -> datetime.date:
        """`template_date` as a date; ValueError where it is none."""
        return datetime.datetime.strptime(self.template_date, "%d %b %Y").date()


@schema("task")
@dataclass
class TaskConfig:
    """A benchmark and how its prompts are made.

    `default_max_new_tokens` is what `sampling.max_new_tokens=null` means; `only_source` is the only data source of a
    task that has one. `context_tokens` concerns longdoc, `execute_code` humaneval and mbpp, `history` tasks with
    several turns; they are legal everywhere so that one sweep can name them for many tasks.
    """

    name: str = MISSING
    default_max_new_tokens: int = 256
    only_source: str | None = None
    truncate: bool = False
    execute_code: bool = False
    context_tokens: int = 1024
    history: str = "baseline"
    style: str = "chat"

    def __post_init__(self) -> None:
        between("task.context_tokens", self.context_tokens, 128, 32768)
        one_of("task.history", self.history, ("baseline", "own"))
        one_of("task.style", self.style, ("chat", "completion"))


@schema("data")
@dataclass
class DataConfig:
    """Where prompts come from; `dir` is the folder of benchmark files that `data=local` reads."""

    source: str = MISSING
    dir: str | None = None

    def __post_init__(self) -> None:
        one_of("data", self.source, SOURCES)
        if self.source == "local":
            not_empty("data.dir", self.dir, "FOLDER (data=local reads benchmark files from it)")
        elif self.dir is not None:
            raise ConfigError(f"data.dir={self.dir}: only data=local reads a folder, and this is data={self.source}")


@schema("sampling")
@dataclass
class SamplingConfig:
    """How a token is chosen (temperature 0 = greedy, top_k 0 and top_p 1 = no cut) and how many, a turn."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    max_new_tokens: int | None = None

    def __post_init__(self) -> None:
        at_least("sampling.temperature", self.temperature, 0.0)
        at_least("sampling.top_k", self.top_k, 0)
        if not 0.0 < self.top_p <= 1.0:
            raise ConfigError(f"sampling.top_p={self.top_p}: must be above 0 and at most 1 (1 = no cut)")
        at_least("sampling.max_new_tokens", self.max_new_tokens, 1, null="the task's default")


@schema("hardware")
@dataclass
class HardwareConfig:
    """The machine's name, the device, the number format, and CPU threads (null = measured once a machine)."""

    name: str = MISSING
    device: str = "auto"
    dtype: str = "bfloat16"
    num_threads: int | None = None

    def __post_init__(self) -> None:
        if not DEVICE.fullmatch(self.device):
            raise ConfigError(f"hardware.device={self.device}: legal values: auto, cpu, cuda, cuda:0, cuda:1, ...")
        one_of("hardware.dtype", self.dtype, DTYPES)
        at_least("hardware.num_threads", self.num_threads, 1, null="the measured best")


@schema("measure")
@dataclass
class MeasureConfig:
    """What a run measures and how it is timed.

    `acceptance`: decode = the real loop; replay = for a draft model with drafts of a fixed length, greedy: the steps
    follow from one pass of the draft over AR's stored answer; nothing is timed (baseline stored, exclusive false).
    `baseline`: AR beside each sample, AR taken from stored runs, or none. `warmup` samples are decoded first and
    thrown away, `repeats` passes are timed. `exclusive=false` drops the device lock and with it speed figures.
    A pair during which the machine's speed drifts is measured again up to `drift_repeats` times, but all such
    repetitions of a run are at most `drift_share` of its pairs (rounded up): a restless machine costs no multiple.
    `tie_gap`: an fp32 logit gap below it makes a divergence from AR a tie (null = by dtype). `retry_failed`: a run that
    is continued first forgets its failed samples.
    """

    acceptance: str = "decode"
    baseline: str = "paired"
    warmup: int = 1
    repeats: int = 1
    drift_repeats: int = 2
    drift_share: float = 0.1
    exclusive: bool = True
    tie_gap: float | None = None
    retry_failed: bool = False

    def __post_init__(self) -> None:
        one_of("measure.acceptance", self.acceptance, ("decode", "replay"))
        one_of("measure.baseline", self.baseline, ("paired", "stored", "none"))
        at_least("measure.warmup", self.warmup, 0)
        at_least("measure.repeats", self.repeats, 1)
        at_least("measure.drift_repeats", self.drift_repeats, 0)
        at_least("measure.drift_share", self.drift_share, 0.0)
        at_least("measure.tie_gap", self.tie_gap, 0.0, null="the default of the dtype")
        if self.acceptance == "replay":
            self._replay()

    def _replay(self) -> None:
        """A replay decodes nothing: AR's answers are stored ones, and there is nothing to warm up, time or repeat."""
        if self.baseline == "none":
            raise ConfigError(
                "measure.baseline=none: measure.acceptance=replay needs AR's answers; leave measure.baseline out (they "
                "are stored and shared)"
            )
        self.baseline, self.exclusive = "stored", False
        self.warmup, self.repeats, self.drift_repeats = 0, 1, 0


@schema("logger")
@dataclass
class LoggerConfig:
    """Who hears about a run: nobody, the console, or W&B (which includes the console)."""

    name: str = MISSING
    mode: str = "offline"
    project: str = "specbench"
    entity: str | None = None
    group: str | None = None
    tags: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        one_of("logger", self.name, ("console", "wandb", "none"))
        one_of("logger.mode", self.mode, ("offline", "online", "disabled"))
        not_empty("logger.project", self.project, "specbench")


@schema("artefact")
@dataclass
class ArtefactConfig:
    """What happens where a trained or converted part is not there: build it, or stop and name the command.

    A controller is built from `num_prompts` held-out prompts, answered with at most `max_new_tokens` tokens.
    """

    if_missing: str = "build"
    num_prompts: int = 48
    max_new_tokens: int = 96

    def __post_init__(self) -> None:
        one_of("artefact.if_missing", self.if_missing, ("build", "error"))
        at_least("artefact.num_prompts", self.num_prompts, 2)
        at_least("artefact.max_new_tokens", self.max_new_tokens, 8)


@schema("paths")
@dataclass
class PathsConfig:
    """Where results go (relative to the folder the command is started in) and where converted weights are kept."""

    results_dir: str = MISSING
    cache_dir: str = MISSING

    def __post_init__(self) -> None:
        not_empty("paths.results_dir", self.results_dir, "results")
        not_empty("paths.cache_dir", self.cache_dir, "~/.cache/specbench")
