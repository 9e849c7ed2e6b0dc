"""Finished runs as a few parquet files that a clone can carry: what every figure, table and notebook is drawn from.

One folder an experiment, so that a finished experiment adds files and changes none:

    results/paper/<experiment>/{runs,samples,steps,choices,profiles,cells,reconstruction}.parquet

Frozen rows name no folder of the machine they were made on. Of steps and choices only the method's own arm is kept:
the arm beside it is AR, whose steps a run with method=ar has.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from specbench.results.cells import load_cells, load_reconstruction
from specbench.results.files import make_folder, read_parquet, write_atomically
from specbench.results.profiles import PROFILE_SCHEMA, profile_rows
from specbench.results.provenance import provenance
from specbench.results.schema import DERIVED, METHOD, TABLES, to_frame
from specbench.results.store import is_finished
from specbench.results.summary import (
    IDENTITY,
    NUMBERS,
    RUN_COLUMNS,
    load_choices,
    load_config,
    load_runs,
    load_samples,
    load_steps,
    run_folders,
)
from specbench.types import DataError

log = logging.getLogger(__name__)

FOLDER = Path("results/paper")
ALONE = "other"  # the folder of runs that belong to no experiment

_IDENTITY = [pa.field(column, pa.string()) for column in IDENTITY]


def _nullable(fields: Iterable[pa.Field]) -> pa.Schema:
    """Without demands: rows that were frozen before a column was thought of have nulls there."""
    return pa.schema([field.with_nullable(True) for field in fields])


_SCHEMAS = {
    **{name: _nullable([*_IDENTITY, *schema]) for name, schema in TABLES.items()},
    "profiles": _nullable(PROFILE_SCHEMA),
    **{name: _nullable(schema) for name, schema in DERIVED.items()},
}
_LOADERS = {
    "samples": load_samples,
    "steps": load_steps,
    "choices": load_choices,
    "cells": load_cells,
    "reconstruction": load_reconstruction,
}
_OF_ONE_ARM = ("steps", "choices")


@dataclass(frozen=True)
class Frozen:
    """Everything frozen in one folder; a table without rows has its columns all the same.

    `runs` has a row a run: the columns of `load_runs`, `job` (the run's identity on any machine), `commit`, `dirty`,
    `load`, the environment and, as `cfg.<key>`, its configuration.
    """

    runs: pd.DataFrame
    samples: pd.DataFrame
    steps: pd.DataFrame
    choices: pd.DataFrame
    profiles: pd.DataFrame
    cells: pd.DataFrame
    reconstruction: pd.DataFrame

    def of(self, *experiments: str) -> Frozen:
        """Only the runs that belong to one of `experiments` (a run may belong to several), with all their rows."""
        belongs = [bool(set(names) & set(experiments)) for names in self.runs["experiments"]]
        return self.where(self.runs[pd.Series(belongs, index=self.runs.index, dtype=bool)])

    def where(self, runs: pd.DataFrame) -> Frozen:
        """Only `runs` (rows of `self.runs`) and what the other tables have of them."""
        ids = set(runs["run_id"])
        parts = {name: getattr(self, name) for name in _SCHEMAS}
        return replace(self, runs=runs, **{name: frame[frame["run_id"].isin(ids)] for name, frame in parts.items()})


def freeze(results_dir: str | Path, folder: str | Path = FOLDER, *, size: str | None = None) -> list[str]:
    """Copy every finished run below `results_dir` into `folder` and give their run ids.

    With a `size` only runs of experiments of that size, so that a trial beside them is not published. A run that is
    frozen already is replaced, for whichever experiment it was frozen; other rows stay, and a file that would not
    change is not written. Runs that did not finish are left out with a warning. DataError names a damaged file.
    """
    groups: dict[str, list[Path]] = {}
    for run_dir in run_folders(results_dir):
        finished = is_finished(run_dir)
        # A kill before the first file of a run leaves a journal and nothing else.
        begun = finished or (run_dir / "config.yaml").exists()
        config = load_config(run_dir) if begun else {}
        experiment = config.get("experiment_name")
        if begun and size is not None and (experiment is None or config.get("size") != size):
            continue
        if finished:
            groups.setdefault(experiment or ALONE, []).append(run_dir)
        else:
            log.warning("%s is not finished and not frozen", run_dir.name)
    for name, run_dirs in groups.items():
        _freeze_group(run_dirs, Path(folder) / name)
    return sorted(run_dir.name for run_dirs in groups.values() for run_dir in run_dirs)


def load_frozen(folder: str | Path = FOLDER) -> Frozen:
    """What `freeze` left in `folder`; nothing there gives frames without rows.

    DataError names a damaged file, and runs that stand in more than one part of the folder.
    """
    folder = Path(folder)
    rows = [row for table in _tables(folder, "runs") for row in table.to_pylist()]
    twice = sorted(name for name, count in Counter(row["run_id"] for row in rows).items() if count > 1)
    if twice:
        raise DataError(f"{folder}: {', '.join(twice)} frozen more than once; freezing these runs again repairs it")
    frames = {name: _concatenated(_tables(folder, name), schema) for name, schema in _SCHEMAS.items()}
    return Frozen(runs=_runs_frame(rows), **frames)


def join_frozen(folder: str | Path, experiment: str, jobs: Iterable[str]) -> None:
    """Note that frozen runs with these `job` keys belong to `experiment` too, whoever measured them first."""
    wanted = set(jobs)
    for path in sorted(Path(folder).glob("*/runs.parquet")):
        rows = read_parquet(path).to_pylist()
        joining = [row for row in rows if row["job"] in wanted and experiment not in row["experiments"]]
        for row in joining:
            row["experiments"] = sorted([*row["experiments"], experiment])
        if joining:
            _write(path, _runs_table(rows))


def _freeze_group(run_dirs: Sequence[Path], folder: Path) -> None:
    """Bring one experiment's files up to date with these runs, and take them out of all others."""
    make_folder(folder)
    names = [run_dir.name for run_dir in run_dirs]
    others = [path.parent for path in sorted(folder.parent.glob("*/runs.parquet")) if path.parent != folder]
    served = _served(names, [folder, *others])
    rows = {row["run_id"]: row for row in _frozen_rows(folder)}
    for run_dir in run_dirs:
        row = _run_row(run_dir)
        rows[run_dir.name] = {**row, "experiments": sorted(served[run_dir.name] | set(row["experiments"]))}
    _write(folder / "runs.parquet", _runs_table([rows[name] for name in sorted(rows)]))
    for table, schema in _SCHEMAS.items():
        new = [_table(run_dir, table, schema) for run_dir in run_dirs]
        _merge(folder / f"{table}.parquet", names, pa.concat_tables(new))
    for other in others:  # last: after a kill a run stands twice, which is noticed, and not nowhere
        _take_out(names, other)


def _served(names: Sequence[str], folders: Iterable[Path]) -> dict[str, set[str]]:
    """The experiments that each of these runs was frozen for, in whichever folder."""
    served: dict[str, set[str]] = {name: set() for name in names}
    for row in (row for folder in folders for row in _frozen_rows(folder)):
        if row["run_id"] in served:
            served[row["run_id"]] |= set(row.get("experiments") or ())
    return served


def _take_out(names: Sequence[str], folder: Path) -> None:
    """Remove these runs from an experiment's files; their rows of `runs` go last, so that a kill before is noticed."""
    rows = _frozen_rows(folder)
    kept = [row for row in rows if row["run_id"] not in names]
    if len(kept) == len(rows):
        return
    for table, schema in _SCHEMAS.items():
        _merge(folder / f"{table}.parquet", names, schema.empty_table())
    if kept:
        _write(folder / "runs.parquet", _runs_table(kept))
    else:
        (folder / "runs.parquet").unlink()


def _frozen_rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / "runs.parquet"
    return read_parquet(path).to_pylist() if path.exists() else []


def _run_row(run_dir: Path) -> dict[str, Any]:
    row = load_runs(run_dir).iloc[0]
    values = {str(key): value for key, value in row.items() if _present(value)}
    return {**values, "run_dir": f"runs/{run_dir.name}", **provenance(run_dir)}


def _table(run_dir: Path, name: str, schema: pa.Schema) -> pa.Table:
    """One run's rows of a frozen table; steps and choices of the method's arm only."""
    if name == "profiles":
        return pa.Table.from_pylist(profile_rows(run_dir), schema=schema)
    frame = _LOADERS[name](run_dir)
    if name in _OF_ONE_ARM:
        frame = frame[frame["arm"] == METHOD]
    return pa.Table.from_pandas(frame[schema.names], schema=schema, preserve_index=False)


def _merge(path: Path, run_ids: Sequence[str], new: pa.Table) -> None:
    """Replace the rows of these runs; a file without rows is not there."""
    if path.exists():
        old = read_parquet(path)
        stays = [run_id not in run_ids for run_id in old.column("run_id").to_pylist()]
        new = pa.concat_tables([_conformed(old.filter(pa.array(stays, pa.bool_())), new.schema), new])
    if new.num_rows:
        order = [[*pair] for pair in enumerate(new.column("run_id").to_pylist())]
        _write(path, new.take([index for index, _ in sorted(order, key=lambda pair: (pair[1], pair[0]))]))
    else:
        path.unlink(missing_ok=True)


def _write(path: Path, table: pa.Table) -> None:
    """Write what differs from the file; seconds do not compress as they stand, split by byte they do."""
    floats = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    others = [field.name for field in table.schema if not pa.types.is_floating(field.type)]
    packing: dict[str, Any] = {
        "compression": "zstd",
        "compression_level": 15,
        "use_dictionary": [*others, *(f"{name}.list.element" for name in others)],
        "use_byte_stream_split": floats,
    }
    buffer = BytesIO()
    pq.write_table(table, buffer, store_schema=False, **packing)
    if not path.exists() or path.read_bytes() != buffer.getvalue():
        write_atomically(path, buffer.getvalue())


# ---- reading


def _tables(folder: Path, name: str) -> list[pa.Table]:
    """The parts of a table, one a folder, in the order of their names."""
    return [read_parquet(path) for path in sorted([*folder.glob(f"{name}.parquet"), *folder.glob(f"*/{name}.parquet")])]


def _concatenated(tables: Sequence[pa.Table], schema: pa.Schema) -> pd.DataFrame:
    return to_frame(pa.concat_tables([schema.empty_table(), *(_conformed(table, schema) for table in tables)]))


def _conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with the columns of `schema`."""
    columns = [
        table.column(field.name).cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


# ---- the runs table, whose columns depend on what the runs are


def _runs_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame([dict(row) for row in rows])
    first = [*RUN_COLUMNS, "experiment", "experiments", "job", "commit", "dirty", "load"]
    frame = frame.reindex(columns=[*first, *(column for column in frame.columns if column not in first)])
    return frame.astype(dict.fromkeys([*NUMBERS, "load"], "float64"))


def _runs_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.Table.from_pydict({name: _array([row.get(name) for row in rows]) for name in names})


def _array(values: Sequence[Any]) -> pa.Array:
    """One column; where runs differ in the type of a value (`auto` beside 0.7) all of it is text."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([value if value is None or isinstance(value, str) else json.dumps(value) for value in values])


def _present(value: Any) -> bool:
    """Whether a cell of a data frame holds something."""
    if isinstance(value, (list, tuple, dict)):
        return True
    return not pd.isna(value)
