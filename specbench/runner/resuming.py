"""Going on with a run: its models must be those that it was begun with, and a change of place is written down."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specbench.results.files import read_json
from specbench.types import ConfigError

log = logging.getLogger(__name__)

EARLIER = "continued_from"  # environments under which earlier samples of a run were measured, oldest first
PLACE = ("cpu", "gpu", "num_threads", "linear_path", "versions")  # a time counts only where these agree
_MODELS = ("target", "draft", "artefacts")


def continued(run_dir: Path, environment: Mapping[str, Any]) -> dict[str, Any]:
    """The environment to store with a run that has samples already: where they were measured elsewhere, both.

    ConfigError where they are of another target, draft or trained part: those rows cannot stand in one run.
    """
    path = run_dir / "environment.json"
    if not path.exists():
        return dict(environment)
    then = read_json(path)
    other = [part for part in _MODELS if _known(then.get(part)) != _known(environment.get(part))]
    if other:
        raise ConfigError(
            f"{run_dir}: its first samples were made with another {', '.join(other)}; put that back, or remove the "
            "folder to measure anew"
        )
    earlier = list(then.pop(EARLIER, ()))
    moved = [part for part in (*PLACE, "git") if then.get(part) != environment.get(part)]
    if moved:
        log.warning("%s: its first samples were measured with another %s", run_dir.name, ", ".join(moved))
        earlier.append(then)
    return {**environment, EARLIER: earlier} if earlier else dict(environment)


def environments(environment: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """All that a run was measured under, the last one first."""
    return [environment, *environment.get(EARLIER, ())]


def _known(part: Any) -> Any:
    """What identifies a model or trained part; where its file lies does not."""
    if isinstance(part, Mapping):
        return {key: value for key, value in part.items() if key != "path"}
    return sorted(map(str, map(_known, part))) if isinstance(part, list) else part
