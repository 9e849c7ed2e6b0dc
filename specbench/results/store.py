"""The folder of one run while it is written: resumable after a kill at any moment.

Order of events: config.yaml, environment.json (and latency.json where a profile was used), then the journal grows by
one line per finished conversation. At the end samples.parquet, steps.parquet, choices.parquet and summary.json are
written, status.json last, and the journal of a finished run is removed. Without status.json a run is interrupted; the
journal of a run that is not finished stays.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import filelock
import pandas as pd
import pyarrow as pa

from specbench.results.files import disk_errors, read_json, read_parquet, write_atomically, write_json, write_parquet
from specbench.results.journal import Journal
from specbench.results.profiles import FILE_NAME as LATENCY_FILE
from specbench.results.schema import KEY, LATER, TABLES, Row, to_frame, to_table
from specbench.types import DataError, SpecbenchError

FINISHED, FAILED, INTERRUPTED, CORRUPT = "finished", "failed", "interrupted", "corrupt"
JOURNAL = "journal.jsonl"
STATUSES = (FINISHED, FAILED, INTERRUPTED)  # what a run may end with; `corrupt` is only ever read


class Frames(NamedTuple):
    """The three tables of a run; `choices` may have no rows."""

    samples: pd.DataFrame
    steps: pd.DataFrame
    choices: pd.DataFrame


def is_finished(run_dir: str | Path) -> bool:
    """Whether the run ended with status `finished`; DataError when status.json is corrupt."""
    path = Path(run_dir) / "status.json"
    return path.exists() and read_json(path).get("status") == FINISHED


class RunStore:
    """The only writer of one run folder; use it as a context manager.

    Raises SpecbenchError when another process writes the same folder or the disk is full, DataError on damage.
    """

    def __init__(self, run_dir: str | Path) -> None:
        self.run_dir = Path(run_dir)
        with disk_errors(self.run_dir):
            self.run_dir.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.run_dir)
        try:
            self._journal = self._open_journal()
        except BaseException:
            self._lock.release()
            raise

    def _open_journal(self) -> Journal | None:
        path = self.run_dir / JOURNAL
        if is_finished(self.run_dir):
            path.unlink(missing_ok=True)  # a kill fell between status.json and the removal
            return None
        journal = Journal(path)
        (self.run_dir / "status.json").unlink(missing_ok=True)  # in progress again
        return journal

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Free the folder for other processes."""
        if self._journal is not None:
            self._journal.close()
        self._lock.release()

    def write_config(self, text: str) -> None:
        """Store the resolved configuration (YAML)."""
        write_atomically(self.run_dir / "config.yaml", text.encode())

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        """Store versions, hardware and threads."""
        write_json(self.run_dir / "environment.json", environment)

    def write_latency(self, record: Mapping[str, Any]) -> None:
        """Store the profile of this machine that the method planned with."""
        write_json(self.run_dir / LATENCY_FILE, record)

    def finished_ids(self) -> set[str]:
        """Sample ids that are recorded (failed ones too) and must not run again."""
        if self._journal is not None:
            return set(self._journal.ids)
        return set(self._tables()["samples"].column("sample_id").to_pylist())

    def forget_failed(self) -> None:
        """Drop the conversations in which an answer failed, so that they run again; nothing of a finished run."""
        if self._journal is not None:
            rows = self._tables()["samples"].select(["sample_id", "finish_reason"]).to_pylist()
            self._journal.drop({row["sample_id"] for row in rows if row["finish_reason"] == "error"})

    def append(
        self, sample_id: str, samples: Sequence[Row], steps: Sequence[Row] = (), choices: Sequence[Row] = ()
    ) -> None:
        """Record one finished conversation durably; DataError on a row that does not fit or an id given twice."""
        if self._journal is None:
            raise SpecbenchError(f"{self.run_dir}: the run is finished; nothing can be added")
        if sample_id in self._journal.ids:
            raise DataError(f"{self.run_dir}: sample {sample_id!r} is already recorded")
        tables = {name: to_table(name, rows) for name, rows in _named(samples, steps, choices)}
        _check_conversation(sample_id, tables)
        self._journal.append(sample_id, {name: table.to_pylist() for name, table in tables.items()})

    def frames(self) -> Frames:
        """Everything recorded so far."""
        return Frames(**{name: to_frame(table) for name, table in self._tables().items()})

    def finalize(self, summary: Mapping[str, Any], *, status: str, error: str | None = None) -> None:
        """Write the tables, summary.json and, last, status.json; safe to repeat after a kill."""
        if status not in STATUSES:
            raise ValueError(f"status {status!r} is not one of {STATUSES}")
        tables = self._tables()
        for name, table in tables.items():
            if name != "choices" or table.num_rows:
                write_parquet(self.run_dir / f"{name}.parquet", table)
        write_json(self.run_dir / "summary.json", summary)
        write_json(self.run_dir / "status.json", self._status(tables["samples"], status, summary, error))
        if status == FINISHED and self._journal is not None:
            self._journal.remove()
            self._journal = None

    def _status(self, samples: pa.Table, status: str, summary: Mapping[str, Any], error: str | None) -> dict[str, Any]:
        rows = samples.select(["sample_id", "finish_reason", "used", "started_at"]).to_pylist()
        failed = {row["sample_id"] for row in rows if row["used"] and row["finish_reason"] == "error"}
        return {
            "status": status,
            "run_id": self.run_dir.name,
            "num_samples": len({row["sample_id"] for row in rows}),
            "num_failed": len(failed),
            "noisy": bool(summary.get("noisy")),
            "started_at": min((row["started_at"] for row in rows if row["started_at"] is not None), default=None),
            "finished_at": time.time(),
            "error": error,
        }

    def _tables(self) -> dict[str, pa.Table]:
        if self._journal is None:
            return read_tables(self.run_dir)
        parts: dict[str, list[pa.Table]] = {name: [schema.empty_table()] for name, schema in TABLES.items()}
        for record in self._journal.read():
            for name, schema in TABLES.items():
                parts[name].append(pa.Table.from_pylist(record[name], schema=schema))
        return {name: pa.concat_tables(tables) for name, tables in parts.items()}


def read_tables(run_dir: Path) -> dict[str, pa.Table]:
    """The tables of an ended run; DataError names a file that is missing, corrupt or lacks a column."""
    return {name: _read_table(run_dir, name) for name in TABLES}


def _read_table(run_dir: Path, name: str) -> pa.Table:
    path = run_dir / f"{name}.parquet"
    schema = TABLES[name]
    if name == "choices" and not path.exists():
        return schema.empty_table()
    table = read_parquet(path)
    lacking = [column for column in schema.names if column not in table.column_names]
    damaged = [column for column in lacking if column not in LATER.get(name, ())]
    if damaged:
        raise DataError(f"{path}: lacks the columns {damaged}")
    for column in lacking:
        table = table.append_column(schema.field(column), pa.nulls(table.num_rows, schema.field(column).type))
    return table.select(schema.names)


def _lock(run_dir: Path) -> filelock.BaseFileLock:
    lock = filelock.FileLock(run_dir / ".lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout as error:
        raise SpecbenchError(f"{run_dir}: another process is writing this run; wait for it or stop it") from error
    except OSError as error:
        raise SpecbenchError(f"{run_dir}: cannot lock the run folder ({error})") from error
    return lock


def _named(samples: Sequence[Row], steps: Sequence[Row], choices: Sequence[Row]) -> list[tuple[str, Sequence[Row]]]:
    return [("samples", samples), ("steps", steps), ("choices", choices)]


def _check_conversation(sample_id: str, tables: Mapping[str, pa.Table]) -> None:
    if not tables["samples"].num_rows:
        raise DataError(f"sample {sample_id!r}: no sample row to record")
    for name, table in tables.items():
        others = set(table.column("sample_id").to_pylist()) - {sample_id}
        if others:
            raise DataError(f"{name} of sample {sample_id!r}: rows of other samples {sorted(others)}")
    keys = [tuple(row.values()) for row in tables["samples"].select(list(KEY)).to_pylist()]
    if len(set(keys)) < len(keys):
        raise DataError(f"sample {sample_id!r}: two rows share one key {KEY}")
