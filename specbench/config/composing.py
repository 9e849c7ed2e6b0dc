"""From words on a command line to one checked RunConfig."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from specbench.config.checks import suggestion
from specbench.config.errors import CONF_DIR, one_line
from specbench.config.own_target import with_own_target
from specbench.config.root import RunConfig
from specbench.config.training import TrainDraftConfig
from specbench.config.words import spelled
from specbench.types import ConfigError

T = TypeVar("T")
C = TypeVar("C", RunConfig, TrainDraftConfig)
TIE_GAP = {"float32": 1e-3, "bfloat16": 0.5, "float16": 0.1}
EMBEDDED_TOKENS = 64  # of an answer on an embedded set, if no length is given: a first look ends soon


def compose(overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration that `python run.py <overrides>` would run; raises ConfigError for anything not legal."""
    words = spelled(overrides)
    return _composed("config", words, lambda cfg: run_config(cfg, words))


def compose_train_draft(overrides: Sequence[str] = ()) -> TrainDraftConfig:
    """The configuration of `python scripts/train_draft.py <overrides>`; raises ConfigError for anything not legal."""
    words = spelled(overrides)
    return _composed("train_draft", words, lambda cfg: _with_absolute_paths(_checked(cfg, TrainDraftConfig, words)))


def _composed(name: str, overrides: Sequence[str], convert: Callable[[DictConfig], T]) -> T:
    with initialized(name, overrides):
        return convert(hydra.compose(name, overrides=list(overrides)))


@contextmanager
def initialized(name: str, overrides: Sequence[str]) -> Iterator[None]:
    """Hydra on the files of conf/, whatever it was used for before; its errors become one ConfigError each."""
    backup = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_dir(str(CONF_DIR), version_base="1.3"):
            yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(one_line(error, overrides, name)) from error
    finally:
        GlobalHydra.instance().hydra = backup


def run_config(cfg: DictConfig, words: Sequence[str]) -> RunConfig:
    """Plain, checked, fully resolved objects from what Hydra composed of these words; raises ConfigError."""
    return _resolved(_checked(cfg, RunConfig, words))


def _checked(cfg: DictConfig, kind: type[C], words: Sequence[str]) -> C:
    """A config of dataclasses, whose checks have run."""
    try:
        config = OmegaConf.to_object(with_own_target(cfg, words))
    except OmegaConfBaseException as error:
        raise ConfigError(one_line(error)) from error
    if not isinstance(config, kind):
        raise ConfigError(
            f"the composed config has lost its schema: its file in conf/ must start with {kind.__name__}'s"
        )
    for key, legal in _unknown_keys(config, ""):
        raise ConfigError(f"{key}: no such key. {suggestion(key, legal)}Legal: {', '.join(legal)}")
    return config


def _with_absolute_paths(config: C) -> C:
    paths = {key: str(_absolute(value)) for key, value in dataclasses.asdict(config.paths).items()}
    return dataclasses.replace(config, paths=dataclasses.replace(config.paths, **paths))


def _resolved(config: RunConfig) -> RunConfig:
    """Fill in what null and auto stand for, as far as it does not take a machine to know."""
    source = config.task.only_source or (config.model.data if config.data.source == "auto" else config.data.source)
    folder = str(_absolute(config.data.dir)) if config.data.dir is not None and source == "local" else None
    sampling, measure = config.sampling, config.measure
    max_new_tokens = sampling.max_new_tokens or _default_length(config, source)
    tie_gap = TIE_GAP[config.hardware.dtype] if measure.tie_gap is None else measure.tie_gap
    return dataclasses.replace(
        _with_absolute_paths(config),
        data=dataclasses.replace(config.data, source=source, dir=folder),
        sampling=dataclasses.replace(sampling, max_new_tokens=max_new_tokens),
        measure=dataclasses.replace(measure, tie_gap=tie_gap),
        logger=dataclasses.replace(config.logger, group=config.logger.group or _sweep_name()),
    )


def _default_length(config: RunConfig, source: str) -> int:
    """Tokens of an answer where the config names no length."""
    default = config.task.default_max_new_tokens
    return min(default, EMBEDDED_TOKENS) if source == "embedded" else default


def _sweep_name() -> str | None:
    """The experiment's name, else the sweep's folder (date and time), else nothing."""
    if not HydraConfig.initialized():
        return None
    cfg = HydraConfig.get()
    experiment = cfg.runtime.choices.get("experiment")
    if experiment is not None:
        return str(experiment)
    return None if job_number() is None else "_".join(Path(cfg.sweep.dir).parts[-2:])


def job_number() -> int | None:
    """The job's number in its sweep; None outside a sweep."""
    job: Any = HydraConfig.get().job
    return None if OmegaConf.is_missing(job, "num") else int(job.num)


def _absolute(path: str) -> Path:
    return Path(path).expanduser().absolute()


def _unknown_keys(part: Any, prefix: str) -> Iterator[tuple[str, list[str]]]:
    """Keys that `+key=value` forced into a part which has no such field, with the legal ones beside them."""
    legal = [field.name for field in dataclasses.fields(part)]
    for name, value in vars(part).items():
        if name not in legal:
            yield prefix + name, [prefix + other for other in legal]
        elif dataclasses.is_dataclass(value):
            yield from _unknown_keys(value, f"{prefix}{name}.")
