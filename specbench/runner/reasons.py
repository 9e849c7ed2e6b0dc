"""Why samples of a run have no numbers, for the line that ends it."""

from __future__ import annotations

import pandas as pd


def first_reason(samples: pd.DataFrame, finish_reason: str) -> str:
    """`: REASON` of the first used row that ended as `error` or `skipped`; an empty text where no row says why.

    `samples` has a row a turn and arm (`results.schema`).
    """
    rows = samples[samples["used"].astype(bool) & (samples["finish_reason"] == finish_reason)]
    found = [str(error).strip().splitlines()[0].rstrip(".") for error in rows["error"].dropna() if str(error).strip()]
    return f": {found[0]}" if found else ""
