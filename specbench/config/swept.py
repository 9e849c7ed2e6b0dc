"""What of a sweep would silently run something else, or nothing, is refused before Hydra sees it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException

from specbench.config.errors import GROUPS
from specbench.config.help import choices
from specbench.types import ConfigError

_SWEEP = re.compile(r"\+{0,2}([\w/]+)=(.*[,(].*)", re.DOTALL)


def check_swept(words: Sequence[str]) -> None:
    """Raise ConfigError for several experiments at once, and for a glob that names no choice of its group."""
    for word in words:
        found = _SWEEP.fullmatch(word)
        if found is None or found[1] not in GROUPS:
            continue
        try:
            override = OverridesParser.create().parse_override(word)
        except HydraException:
            continue  # a word that cannot be read: Hydra's own error says so
        if found[1] == "experiment" and override.is_sweep_override():
            raise ConfigError(_one_experiment(found[2]))
        _check_glob(override, found[1])


def _one_experiment(value: str) -> str:
    """An experiment brings its own sweep, and Hydra reads that of one experiment only."""
    return (
        f"experiment={value}: an experiment is one name; run them one after another, "
        f"or scripts/run_paper.py --only {'A,B' if '(' in value else value}. "
        f"Legal: {', '.join(choices('experiment'))}"
    )


def _check_glob(override: Override, group: str) -> None:
    glob = override.value()
    legal = choices(group)
    if isinstance(glob, Glob) and not glob.filter(legal):
        raise ConfigError(f"{override.input_line}: matches no choice of {group}. Legal: {', '.join(legal)}")
