"""Published numbers as cells of a table, each with the mark of its quality."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specbench.analysis.table_text import EMPTY, Cell

_MARK = {"paper": "p", "second-hand": "s", "from logs": "l"}
MARKS = (
    "Published rows are other models on other hardware, copied from results/published and never measured here: "
    "(p) stated in the paper, (s) second-hand, (l) from logs or figures of the official code, ? = it is not certain "
    "what the number belongs to."
)


def published_cell(row: Mapping[Any, Any] | None) -> Cell:
    """`1.43 (s)`; `up to` before a claimed maximum, `?` after a doubtful number."""
    if row is None:
        return EMPTY
    most = "up to " if str(row["metric"]).endswith("_max") else ""
    doubt = "?" if row["doubtful"] else ""
    return Cell(f"{most}{row['text']}{doubt} ({_MARK[row['quality']]})")
