"""Loaders that give data frames of finished runs: one row a run, a turn, a step or a choice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from specbench.config.trees import flatten
from specbench.results.experiments import experiments_of
from specbench.results.files import read_json
from specbench.results.schema import empty_frame, to_frame
from specbench.results.store import CORRUPT, INTERRUPTED, STATUSES, read_tables
from specbench.types import DataError

IDENTITY = ("run_id", "model", "method", "controller", "task", "dtype")
NUMBERS = (
    "tokens_per_second",
    "walltime_speedup",
    "ci_low",
    "ci_high",
    "acceptance_rate",
    "mat",
    "exact_match_rate",
)
RUN_COLUMNS = (*IDENTITY, *NUMBERS, "status", "run_dir")

CONFIGURED = "cfg."  # begins the columns that hold a run's configuration
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the former needs libyaml, and a tenth of the time
_LEFT_OUT = ("paths.", "logger.", "data.dir", "dry_run", "experiment_name", "objective")
_MARKS = ("status.json", "journal.jsonl", "summary.json", "config.yaml")


def load_runs(root: str | Path) -> pd.DataFrame:
    """One row a run below `root` (or of the run folder `root`), RUN_COLUMNS first, then all of summary.json.

    `cfg.<key>` is what the run's configuration says of a key, but for folders, loggers and the like.
    `experiment` is the one that a run was measured for (or nothing), `experiments` lists all that it serves.

    A run that did not end is listed as `interrupted`, an unreadable one as `corrupt` with its `error`; neither has
    numbers. A folder without runs gives no rows.
    """
    rows = [_run_row(folder) for folder in run_folders(root)]
    frame = pd.DataFrame(rows)
    others = [column for column in frame.columns if column not in RUN_COLUMNS]
    frame = frame.reindex(columns=[*RUN_COLUMNS, *others])
    return frame.astype(dict.fromkeys(NUMBERS, "float64"))


def load_samples(root: str | Path) -> pd.DataFrame:
    """Sample rows of all ended runs with the run's identity beside; DataError names a corrupt file."""
    return _load(root, "samples")


def load_steps(root: str | Path) -> pd.DataFrame:
    """Step rows of all ended runs with the run's identity beside; DataError names a corrupt file."""
    return _load(root, "steps")


def load_choices(root: str | Path) -> pd.DataFrame:
    """Choice rows of all ended runs with the run's identity beside; DataError names a corrupt file."""
    return _load(root, "choices")


def load_config(run_dir: str | Path) -> dict[str, Any]:
    """The resolved configuration of a run folder as nested plain dicts; DataError when it is missing or corrupt."""
    path = Path(run_dir) / "config.yaml"
    try:
        config = yaml.load(path.read_text(encoding="utf-8"), _LOADER)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(f"{path}: not readable YAML ({error})") from error
    if not isinstance(config, dict):
        raise DataError(f"{path}: expected a mapping")
    return config


def run_folders(root: str | Path) -> list[Path]:
    """The run folders at or directly below `root`, or below `root/runs`, by name."""
    root = Path(root)
    if _is_run(root):
        return [root]
    if (root / "runs").is_dir():
        root = root / "runs"
    return sorted(folder for folder in root.iterdir() if _is_run(folder)) if root.is_dir() else []


def _is_run(folder: Path) -> bool:
    return folder.is_dir() and any((folder / mark).is_file() for mark in _MARKS)


def _run_row(folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = {"run_id": folder.name, "run_dir": str(folder), "status": INTERRUPTED}
    try:
        config = _config(folder)
        row |= _named(folder, config) | settings(config)
        if not _ended(folder):
            return row
        summary = dict(_flat(read_json(folder / "summary.json")))
        return {**row, **_known(summary), **read_json(folder / "status.json"), "run_id": folder.name}
    except DataError as error:
        return row | {"status": CORRUPT, "error": str(error)}


def _identity(folder: Path) -> dict[str, Any]:
    """Names of the choices of an ended run: summary.json knows best (an embedded task names itself)."""
    return {**_named(folder, _config(folder)), **_known(read_json(folder / "summary.json")), "run_id": folder.name}


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None or key not in IDENTITY}


def _config(folder: Path) -> dict[str, Any]:
    """The run's configuration; empty where a kill came before it was written."""
    return load_config(folder) if (folder / "config.yaml").exists() else {}


def _named(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    if not config:
        return {}
    method, hardware = config.get("method"), config.get("hardware")
    return {
        "model": _name(config.get("model")),
        "method": _name(method),
        "controller": _name(method.get("controller")) if isinstance(method, Mapping) else None,
        "task": _name(config.get("task")),
        "dtype": hardware.get("dtype") if isinstance(hardware, Mapping) else None,
        **experiments_of(folder, config.get("experiment_name")),
    }


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a configuration, without keys that say nothing of what was measured."""
    told = {key: value for key, value in flatten(config).items() if not key.endswith("_target_")}
    return {f"{CONFIGURED}{key}": value for key, value in told.items() if not key.startswith(_LEFT_OUT)}


def _name(choice: Any) -> str | None:
    name = choice.get("name") if isinstance(choice, Mapping) else choice
    return None if name is None else str(name)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _load(root: str | Path, name: str) -> pd.DataFrame:
    frames = [_with_run(folder, name) for folder in run_folders(root) if _ended(folder)]
    if frames:
        return pd.concat(frames, ignore_index=True)
    empty = empty_frame(name)
    return empty.reindex(columns=[*IDENTITY, *empty.columns])


def _ended(folder: Path) -> bool:
    path = folder / "status.json"
    if not path.exists():
        return False
    status = read_json(path).get("status")
    if status not in STATUSES:
        raise DataError(f"{path}: status {status!r} is not one of {STATUSES}")
    return status != INTERRUPTED


def _with_run(folder: Path, name: str) -> pd.DataFrame:
    frame = to_frame(read_tables(folder)[name])
    identity = _identity(folder)
    for position, column in enumerate(IDENTITY):
        frame.insert(position, column, identity.get(column))
    return frame
