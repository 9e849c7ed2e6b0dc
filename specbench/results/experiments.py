"""Which experiments a run serves: the one it was measured for, and others that needed the very same run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specbench.results.files import read_json, write_json

FILE_NAME = "experiments.json"


def join_experiment(run_dir: str | Path, name: str | None) -> None:
    """Note that a finished run serves the experiment `name` too; None notes nothing."""
    if name is not None:
        joined = _joined(Path(run_dir))
        write_json(Path(run_dir) / FILE_NAME, {"experiments": sorted({*joined, name})})


def experiments_of(run_dir: Path, own: str | None) -> dict[str, Any]:
    """`experiment`: the one that a run was measured for; `experiments`: all that it serves."""
    return {"experiment": own, "experiments": sorted({*_joined(run_dir), *([own] if own else [])})}


def _joined(run_dir: Path) -> list[str]:
    path = run_dir / FILE_NAME
    return list(read_json(path)["experiments"]) if path.exists() else []
