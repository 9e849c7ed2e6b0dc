"""The jobs of a sweep before anything runs: what `python run.py experiment=NAME ...` would start, job by job."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence

import hydra
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from specbench.config.composing import compose, initialized, run_config
from specbench.config.errors import GROUPS
from specbench.config.help import choices
from specbench.config.root import RunConfig
from specbench.config.swept import check_swept
from specbench.config.words import spelled
from specbench.types import ConfigError

# What sweeps vary: each node of the configuration depends on the choice of these groups and of no others.
_NODES = {"model": ("model",), "task": ("task",), "method": ("method", "method/controller")}


def experiments() -> list[str]:
    """The names of all experiment files."""
    return choices("experiment")


def sweep_jobs(words: Sequence[str]) -> list[list[str]]:
    """The words of every job of a sweep, in Hydra's order; each list is ready for `compose`.

    Raises ConfigError for words that are not legal; whether a job's own words are legal is for `compose` to say.
    """
    words = spelled(words)
    check_swept(words)
    with initialized("config", words):
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        first = BasicSweeper.split_arguments(parser.parse_overrides(words), None)[0][0]
    with initialized("config", first):  # for its one-line errors
        groups, values = _split(parser.parse_overrides(first))
        try:
            cfg = _with_values(copy.deepcopy(_hydra_composed(tuple(groups.values()))), values)
        except OmegaConfBaseException:
            cfg = hydra.compose("config", overrides=first, return_hydra_config=True)  # knows what to say of it
        params = OmegaConf.to_container(cfg.hydra.sweeper.params or OmegaConf.create(), resolve=True)
        assert isinstance(params, dict)
        swept = parser.parse_overrides([*(f"{key!s}={value}" for key, value in params.items()), *words])
        return BasicSweeper.split_arguments(swept, None)[0]


def compose_each(jobs: Sequence[Sequence[str]]) -> list[RunConfig | ConfigError]:
    """What `compose` gives for each job, or the error that it raises, in a fraction of the time.

    Jobs are put together from parts that they share; whatever is not plain is left to `compose`.
    """
    return [_config(words) for words in jobs]


def _config(words: Sequence[str]) -> RunConfig | ConfigError:
    try:
        try:
            cfg = _assembled(words)
        except (ConfigError, HydraException, OmegaConfBaseException):
            return compose(words)  # it knows how to say what is wrong
        return run_config(cfg, words)
    except ConfigError as error:
        return error


def _assembled(words: Sequence[str]) -> DictConfig:
    """The composed configuration of one job."""
    chosen, values = _split(OverridesParser.create().parse_overrides(list(words)))
    varied = {group for groups in _NODES.values() for group in groups}
    shared = tuple(word for group, word in chosen.items() if group not in varied)
    cfg = copy.deepcopy(_without_hydra(shared))
    for node, groups in _NODES.items():
        own = tuple(chosen[group] for group in groups if group in chosen)
        if own:
            cfg[node] = _node(node, own, shared)
    return _with_values(cfg, values)


@functools.cache
def _node(node: str, own: tuple[str, ...], shared: tuple[str, ...]) -> DictConfig:
    """What a choice makes of its node; an experiment that leaves the node alone shares it with all others."""
    alone = _hydra_composed(shared)[node] == _hydra_composed(())[node]
    return _hydra_composed((*(() if alone else shared), *own))[node]


@functools.cache
def _hydra_composed(words: tuple[str, ...]) -> DictConfig:
    """What Hydra makes of choices of groups, its own node too; not to be changed, because it is shared."""
    with initialized("config", words):
        return hydra.compose("config", overrides=list(words), return_hydra_config=True)


@functools.cache
def _without_hydra(words: tuple[str, ...]) -> DictConfig:
    cfg = copy.deepcopy(_hydra_composed(words))
    with flag_override(cfg, ["struct", "readonly"], False):
        del cfg["hydra"]
    return cfg


def _split(overrides: Sequence[Override]) -> tuple[dict[str, str], list[Override]]:
    """Choices of groups by group, and what sets values; ConfigError for what is neither (`+key`, `~key`)."""
    if any(override.type != OverrideType.CHANGE or override.package for override in overrides):
        raise ConfigError("only group=choice and key=value")
    groups = [override for override in overrides if _is_group(override.key_or_group)]
    words = {override.key_or_group: _word(override) for override in groups}
    return words, [override for override in overrides if not _is_group(override.key_or_group)]


def _is_group(key: str) -> bool:
    return key in GROUPS or "/" in key


def _with_values(cfg: DictConfig, values: Sequence[Override]) -> DictConfig:
    """Values set as Hydra sets them, in the configuration that is given."""
    for override in values:
        OmegaConf.update(cfg, override.key_or_group, override.value(), merge=True)
    return cfg


def _word(override: Override) -> str:
    return f"{override.get_key_element()}={override.get_value_element_as_str()}"
