"""Checks that name the full key, what was given and what is legal, in one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from specbench.types import ConfigError


def one_of(key: str, value: object, legal: Sequence[str]) -> None:
    """Raise ConfigError unless `value` is one of `legal`."""
    if value not in legal:
        raise ConfigError(f"{key}={value}: not a legal value. {suggestion(str(value), legal)}Legal: {', '.join(legal)}")


def at_least(key: str, value: float | None, low: float, *, null: str = "") -> None:
    """Raise ConfigError unless `value` >= `low`; `null` says what null means where null is legal."""
    if value is None and null:
        return
    if value is None or not value >= low:
        also = f", or null for {null}" if null else ""
        raise ConfigError(f"{key}={_shown(value)}: must be {low:g} or more{also}")


def between(key: str, value: float, low: float, high: float) -> None:
    """Raise ConfigError unless `low` <= `value` <= `high`."""
    if not low <= value <= high:
        raise ConfigError(f"{key}={value}: must be from {low:g} to {high:g}")


def not_empty(key: str, value: str | None, example: str) -> None:
    """Raise ConfigError unless `value` is a text with something in it."""
    if not value or not value.strip():
        raise ConfigError(f"{key}={_shown(value)}: must not be empty; for example {key}={example}")


def suggestion(word: str, legal: Iterable[str]) -> str:
    """`did you mean 'x'? `, or an empty text when nothing is close."""
    close = difflib.get_close_matches(word, list(legal), n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'? " if close else ""


def _shown(value: object) -> object:
    return "null" if value is None else value
