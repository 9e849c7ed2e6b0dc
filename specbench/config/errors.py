"""Hydra's and OmegaConf's messages, said in one line that names the key, what was meant and what is legal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException, ValidationError

from specbench.config.checks import suggestion
from specbench.config.trees import flatten

CONF_DIR = Path(__file__).resolve().parents[2] / "conf"
GROUPS = (
    "model",
    "method",
    "method/controller",
    "task",
    "data",
    "sampling",
    "hardware",
    "measure",
    "logger",
    "experiment",
    "paths",
    "hydra",
)
_KEY = re.compile(r"(?:Could not override|In override|looks like a config group override.*) '([^']+)'")
_OF_A_RESOLVER = re.compile(r"ConfigError raised while resolving interpolation: (.*)")
_EXTRAS = {"joblib": "pip install 'specbench[joblib]'"}


def one_line(error: BaseException, overrides: Sequence[str] = (), config_name: str = "config") -> str:
    """What is wrong and what is legal, in one line; `overrides` are the words that the user typed.

    `config_name` is the file in conf/ that they belong to.
    """
    if isinstance(error, MissingConfigException):
        return _missing_choice(error)
    if isinstance(error, OverrideParseException):
        return f"cannot read {error.override!r}: {_first_line(error)}; write key=value, group=choice or key=[a,b]"
    chain = list(_causes(error))
    for link in chain:
        found = _OF_A_RESOLVER.search(str(link))
        if found is not None:
            return found.group(1)
        if isinstance(link, MissingMandatoryValue):
            return f"{link.full_key}: a value is needed"
        if isinstance(link, ValidationError):
            return f"{link.full_key}: {_first_line(link)}"
    if "Ambiguous value" in str(error) or "requires --multirun" in str(error):
        return f"{_quoted(str(error))} asks for a sweep: add -m (--multirun), or give one value"
    key = key_of(error)
    if key is not None:
        return unknown_key(key, overrides, config_name)
    return "; ".join(dict.fromkeys(_first_line(link) for link in chain))


def unknown_key(key: str, overrides: Sequence[str] = (), config_name: str = "config") -> str:
    """The line for a key or a group that is not there: the closest one, and those that are legal in its place."""
    if "/" in key:
        return f"{key}: no such group. {suggestion(key, GROUPS)}Legal: {', '.join(GROUPS)}"
    reference = _reference(overrides, config_name)
    parent, here = _deepest(key, reference)
    names = [name for name in here if name != "_target_"]
    if not parent:
        legal = [*names, "experiment"]
        return f"{key}: no such key. {suggestion(key, [*GROUPS, *flatten(reference), *legal])}Legal: {', '.join(legal)}"
    # Compared below the parent, so that a shared beginning does not make two keys alike.
    close = suggestion(key.removeprefix(f"{parent}."), names).replace(" '", f" '{parent}.")
    return (
        f"{key}: no such key{_chosen(key, overrides)}. {close}Legal: {', '.join(f'{parent}.{name}' for name in names)}"
    )


def _chosen(key: str, overrides: Sequence[str]) -> str:
    """` with method=ar` where these words choose one file for the group that the key belongs to."""
    for group in sorted(GROUPS, key=len, reverse=True):
        words = [word for word in overrides if word.partition("=")[0] == group]
        if words and key.startswith(f"{group.replace('/', '.')}."):
            return "" if re.search("[,(]", words[-1]) else f" with {words[-1]}"
    return ""


def _deepest(key: str, reference: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The longest beginning of `key` that names a node, and the node."""
    parent, node = "", reference
    for name in key.split("."):
        child = node.get(name)
        if not isinstance(child, dict):
            break
        parent, node = f"{parent}.{name}".lstrip("."), child
    return parent, node


def _missing_choice(error: MissingConfigException) -> str:
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    if not group or error.options is None:
        return _first_line(error)
    extra = f" ({_EXTRAS[name]} brings it)" if name in _EXTRAS else ""
    hint = suggestion(name, error.options)
    return f"{group}={name}: no such choice{extra}. {hint}Legal: {', '.join(error.options)}"


def key_of(error: BaseException) -> str | None:
    """The key or group that is not there, where that is what Hydra says."""
    found = _KEY.search(str(error)) or re.search(r"config group '([^']+)' does not", str(error))
    return found.group(1) if found else None


def _reference(overrides: Sequence[str], config_name: str) -> dict[str, Any]:
    """The config that the group choices among `overrides` give, or the default one if even these are wrong."""
    words = [word.split(",")[0] for word in overrides if word.partition("=")[0] in GROUPS and "(" not in word]
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        try:
            cfg = hydra.compose(config_name, overrides=words)
        except (HydraException, OmegaConfBaseException):
            cfg = hydra.compose(config_name)
    return cast(dict[str, Any], OmegaConf.to_container(cfg))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _quoted(text: str) -> str:
    found = re.search(r"'([^']+)'", text)
    return found.group(1) if found else text


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
