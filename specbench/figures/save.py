"""A drawn figure as files: PDF, PNG, what is drawn as CSV, and where it comes from as JSON."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from specbench.figures.style import settings
from specbench.results.files import make_folder, write_json

_PACKAGES = ("specbench", "matplotlib", "pandas", "numpy")
_RUN_KEYS = ("commit", "dirty", "load", "model", "method", "task", "dtype", "cpu", "gpu", "threads", "num_measured")


class Drawn(NamedTuple):
    """A figure, the frame it shows, and the name of its files."""

    name: str
    figure: Figure
    frame: pd.DataFrame


def save(drawn: Drawn, folder: Path, runs: pd.DataFrame, origin: Mapping[str, Any]) -> list[Path]:
    """Write NAME.pdf, .png, .csv and .json and give their paths; equal input gives equal files.

    `runs`: the rows of `Frozen.runs`, of which the JSON names those that are drawn; `origin`: what else it says.
    """
    make_folder(folder)
    paths = {kind: folder / f"{drawn.name}.{kind}" for kind in ("pdf", "png", "csv", "json")}
    with mpl.rc_context(settings()):
        drawn.figure.savefig(paths["pdf"], metadata={"CreationDate": None})
        drawn.figure.savefig(paths["png"], metadata={"Software": None})
    drawn.frame.to_csv(paths["csv"], index=False)
    write_json(paths["json"], provenance(drawn, runs) | dict(origin))
    return list(paths.values())


def provenance(drawn: Drawn, runs: pd.DataFrame) -> dict[str, Any]:
    """Runs that are drawn (with commit, load and machine), and the versions that drew them."""
    ids = sorted({run_id for cell in drawn.frame["run_id"].unique() for run_id in str(cell).split()})
    known = {row["run_id"]: row for row in runs.to_dict("records")}
    return {
        "figure": drawn.name,
        "num_rows": len(drawn.frame),
        "runs": {run_id: _run(known.get(run_id, {})) for run_id in ids},
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in _PACKAGES},
        },
    }


def _run(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {key: _plain(row[key]) for key in _RUN_KEYS if key in row}


def _plain(value: Any) -> Any:
    if value is None or (not isinstance(value, str) and pd.isna(value)):
        return None
    return value.item() if hasattr(value, "item") else value
