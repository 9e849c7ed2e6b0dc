"""Frames of stored rows for the tests of metrics."""

from __future__ import annotations

from typing import Any

import pandas as pd

from specbench.results.schema import to_frame, to_table
from tests.results.rows import sample


def frame(rows: list[dict[str, Any]], name: str = "samples") -> pd.DataFrame:
    return to_frame(to_table(name, rows))


def pair_rows(sample_id: str, method: tuple[int, float], ar: tuple[int, float], **values: Any) -> list[dict[str, Any]]:
    """Rows of both arms; `method` and `ar` are (tokens, decode seconds)."""
    arms = (("method", method), ("baseline", ar))
    return [sample(sample_id, arm=arm, num_tokens=n, decode_s=t, prefill_s=0.5, **values) for arm, (n, t) in arms]
