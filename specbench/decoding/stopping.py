"""One stop rule for every method: the first stop id ends the answer, and the budget is exact."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from specbench.types import Verdict


def cut(verdict: Verdict, *, stop_ids: Collection[int], budget: int) -> Verdict:
    """The verdict with its tokens cut after the first stop id (kept) or at `budget` tokens, whichever is first."""
    tokens = verdict.tokens[:budget]
    stop = next((i for i, token in enumerate(tokens) if token in stop_ids), None)
    if stop is not None:
        tokens = tokens[: stop + 1]
    if len(tokens) == len(verdict.tokens):
        return replace(verdict, stopped=stop is not None)
    rows = verdict.rows[: len(tokens)]
    return Verdict(
        rows=rows,
        tokens=tokens,
        num_accepted=len(rows),
        # Spine rows lead a path, so cutting its end takes siblings away first.
        num_accepted_spine=min(verdict.num_accepted_spine, len(rows)),
        next_token=tokens[-1],
        stopped=stop is not None,
    )
