"""Published numbers beside which ours are shown: loaded from CSV files, checked line by line, never written here."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from specbench.types import DataError

COLUMNS = (
    "paper",
    "table",
    "model",
    "task",
    "setting",
    "method",
    "metric",
    "value",
    "quality",
    "doubtful",
    "source",
)
QUALITIES = ("paper", "second-hand", "from logs")
_MAY_BE_EMPTY = ("setting",)
_IDENTITY = COLUMNS[:7]  # two values for one identity would be two claims
_DOUBT = {"yes": True, "no": False}


def load_published(folder: str | Path) -> pd.DataFrame:
    """All rows of the CSV files in `folder`: COLUMNS (`value` a float, `doubtful` a boolean) and `text`, the value as
    it was published.

    DataError names file and line of a wrong header, an unknown quality, a value that is no number, an empty cell or
    a number given twice; also when the folder holds no CSV file.
    """
    paths = sorted(Path(folder).glob("*.csv"))
    if not paths:
        raise DataError(f"{folder}: no CSV files of published numbers")
    rows: list[dict[str, str]] = []
    seen: dict[tuple[str, ...], str] = {}
    for path in paths:
        for where, row in _read(path):
            _check(where, row)
            first = seen.setdefault(tuple(row[name] for name in _IDENTITY), where)
            if first != where:
                raise DataError(f"{where}: the same number as {first}")
            rows.append(row)
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    text = frame["value"].str.replace(r"^(-?)\.", r"\g<1>0.", regex=True)
    return frame.assign(value=frame["value"].astype("float64"), doubtful=frame["doubtful"].map(_DOUBT), text=text)


def _read(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    with path.open(newline="", encoding="utf-8") as lines:
        reader = csv.DictReader(lines)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise DataError(f"{path}: header {reader.fieldnames}; expected {list(COLUMNS)}")
        for row in reader:
            yield f"{path}:{reader.line_num}", row


def _check(where: str, row: dict[str, str]) -> None:
    if None in row or None in row.values():
        raise DataError(f"{where}: {len(COLUMNS)} cells expected")
    empty = [name for name in COLUMNS if not row[name].strip() and name not in _MAY_BE_EMPTY]
    if empty:
        raise DataError(f"{where}: empty {empty}")
    if row["quality"] not in QUALITIES:
        raise DataError(f"{where}: quality={row['quality']}; legal: {', '.join(QUALITIES)}")
    if row["doubtful"] not in _DOUBT:
        raise DataError(f"{where}: doubtful={row['doubtful']}; legal: {', '.join(_DOUBT)}")
    if not _is_number(row["value"]):
        raise DataError(f"{where}: value={row['value']} is not a number")


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
