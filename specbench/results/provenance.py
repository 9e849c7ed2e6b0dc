"""Where a run's numbers come from: commit, load, versions, machine, configuration; no folders of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.config.identity import job_key
from specbench.results.files import read_json
from specbench.results.store import read_tables
from specbench.results.summary import CONFIGURED, load_config, settings


def provenance(run_dir: Path) -> dict[str, Any]:
    """The columns that a frozen run has beside its numbers; DataError names a damaged file."""
    config = load_config(run_dir)
    told = {key: _anywhere(value) for key, value in settings(config).items()}
    return {"job": job_key(config), "load": _mean_load(run_dir), **_environment(run_dir), **told}


def configured(runs: pd.DataFrame) -> list[str]:
    """The columns that hold the runs' configuration."""
    return [str(column) for column in runs if str(column).startswith(CONFIGURED)]


def _environment(run_dir: Path) -> dict[str, Any]:
    path = run_dir / "environment.json"
    values = read_json(path) if path.exists() else {}
    git, cpu, gpu = (values.get(key) or {} for key in ("git", "cpu", "gpu"))
    versions = {f"version.{name}": version for name, version in (values.get("versions") or {}).items()}
    return {
        "commit": git.get("commit"),
        "dirty": git.get("dirty"),
        "host": values.get("host"),
        "device": values.get("device"),
        "cpu": cpu.get("model"),
        "gpu": gpu.get("name"),
        "threads": values.get("num_threads"),
        "version.python": values.get("python"),
        **versions,
    }


def _mean_load(run_dir: Path) -> float | None:
    """Mean load of the machine before and after the samples that count."""
    table = read_tables(run_dir)["samples"].select(["used", "load_before", "load_after"])
    loads = [row[name] for row in table.to_pylist() if row["used"] for name in ("load_before", "load_after")]
    known = [load for load in loads if load is not None]
    return sum(known) / len(known) if known else None


def _anywhere(value: Any) -> Any:
    """A folder of this machine by its last name; everything else as it is."""
    if isinstance(value, str) and value.startswith(("/", "~")):
        return Path(value).name
    if isinstance(value, Mapping):
        return {key: _anywhere(item) for key, item in value.items()}
    return [_anywhere(item) for item in value] if isinstance(value, list) else value
