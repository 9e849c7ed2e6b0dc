"""The jobs of a sweep before anything runs: what `python run.py experiment=NAME ...` would start, job by job."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

import hydra
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from specbench.config.composing import compose, initialized, run_config
from specbench.config.errors import CONF_DIR, GROUPS
from specbench.config.root import RunConfig
from specbench.config.words import spelled
from specbench.types import ConfigError

# What sweeps vary: each node of the configuration depends on the choice of these groups and of no others.
_NODES = {"model": ("model",), "task": ("task",), "method": ("method", "method/controller")}


def experiments() -> list[str]:
    """The names of all experiment files."""
    return sorted(path.stem for path in (CONF_DIR / "experiment").glob("*.yaml"))


def sweep_jobs(words: Sequence[str]) -> list[list[str]]:
    """The words of every job of a sweep, in Hydra's order; each list is ready for `compose`.

    Raises ConfigError for words that are not legal; whether a job's own words are legal is for `compose` to say.
    """
    words = spelled(words)
    with initialized("config", words):
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        first = BasicSweeper.split_arguments(parser.parse_overrides(words), None)[0][0]
        cfg = hydra.compose("config", overrides=first, return_hydra_config=True)
        params = OmegaConf.to_container(cfg.hydra.sweeper.params, resolve=True) or {}
        assert isinstance(params, dict)
        swept = parser.parse_overrides([*(f"{key!s}={value}" for key, value in params.items()), *words])
        return BasicSweeper.split_arguments(swept, None)[0]


def compose_each(jobs: Sequence[Sequence[str]]) -> list[RunConfig | ConfigError]:
    """What `compose` gives for each job, or the error that it raises, in a fraction of the time."""
    composer = _Composer()
    return [composer.config(words) for words in jobs]


@dataclass
class _Composer:
    """Puts jobs together from the parts that they share; whatever is not plain is left to `compose`."""

    _known: dict[tuple[str, ...], DictConfig] = field(default_factory=dict)

    def config(self, words: Sequence[str]) -> RunConfig | ConfigError:
        try:
            return run_config(self._assembled(words))
        except (ConfigError, HydraException, OmegaConfBaseException):
            return _composed(words)  # it knows how to say what is wrong

    def _assembled(self, words: Sequence[str]) -> DictConfig:
        overrides = OverridesParser.create().parse_overrides(list(words))
        if any(override.type != OverrideType.CHANGE or override.package for override in overrides):
            raise ConfigError("not a plain job")
        choices = {o.key_or_group: _word(o) for o in overrides if o.key_or_group in GROUPS}
        varied = {group for groups in _NODES.values() for group in groups}
        shared = [word for group, word in choices.items() if group not in varied]
        cfg = copy.deepcopy(self._composed_once(shared))
        for node, groups in _NODES.items():
            own = [choices[group] for group in groups if group in choices]
            if own:
                cfg[node] = self._node(node, own, shared)
        for override in overrides:
            if override.key_or_group not in GROUPS:
                OmegaConf.update(cfg, override.key_or_group, override.value(), merge=True)
        return cfg

    def _node(self, node: str, own: Sequence[str], shared: Sequence[str]) -> DictConfig:
        """What a choice makes of its node; an experiment that leaves the node alone shares it with all others."""
        plain = self._composed_once([])[node]
        alone = self._composed_once(shared)[node] == plain
        return self._composed_once([*([] if alone else shared), *own])[node]

    def _composed_once(self, words: Sequence[str]) -> DictConfig:
        key = tuple(words)
        if key not in self._known:
            with initialized("config", words):
                self._known[key] = hydra.compose("config", overrides=list(words))
        return self._known[key]


def _word(override: Override) -> str:
    return f"{override.get_key_element()}={override.get_value_element_as_str()}"


def _composed(words: Sequence[str]) -> RunConfig | ConfigError:
    try:
        return compose(words)
    except ConfigError as error:
        return error
