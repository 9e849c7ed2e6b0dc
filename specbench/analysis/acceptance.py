"""What was drafted and accepted, pooled over verify steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from specbench.analysis.rows import arm, floats, ratio
from specbench.results.schema import KEY, METHOD

_NAMES = (
    "num_steps",
    "num_draft_tokens",
    "num_tree_tokens",
    "num_accepted",
    "mat",
    "accepted_per_step",
    "tree_tokens_per_step",
    "draft_tokens_per_step",
    "acceptance_rate",
    "tree_acceptance_rate",
    "acceptance_by_position",
    "drafted_by_position",
    "verify_rows_histogram",
    "drafted_nothing",
)


def acceptance_metrics(rows: pd.DataFrame, steps: pd.DataFrame) -> dict[str, Any]:
    """Acceptance of the method's steps that belong to `rows`; all None for generators without steps.

    - mat: emitted tokens / verify steps; accepted_per_step: without the bonus or correction token
    - acceptance_rate: sum num_accepted_spine / sum num_draft_tokens over steps with a spine, None without a spine
    - tree_acceptance_rate: sum num_accepted / sum num_draft_tokens over the same steps (siblings and phrases count)
    - acceptance_by_position[i]: spine tokens accepted / drafted at position i; drafted_by_position: the denominators
    - verify_rows_histogram: [rows of a verify pass, root and passengers included; number of steps]
    - drafted_nothing: no step had a row beside the root
    """
    steps = steps.merge(arm(rows, METHOD)[list(KEY)], on=list(KEY))
    if steps.empty:
        return dict.fromkeys(_NAMES)
    tree, accepted, count = steps["num_tree_tokens"].sum(), steps["num_accepted"].sum(), len(steps)
    verify_rows = 1 + steps["num_tree_tokens"] + steps["num_passengers"]
    sizes, frequencies = np.unique(floats(verify_rows).astype(int), return_counts=True)
    return {
        "num_steps": count,
        "num_tree_tokens": int(tree),
        "num_accepted": int(accepted),
        "mat": ratio(steps["num_emitted"].sum(), count),
        "accepted_per_step": ratio(accepted, count),
        "tree_tokens_per_step": ratio(tree, count),
        **_spine_metrics(with_spine(steps)),
        "verify_rows_histogram": [[int(size), int(n)] for size, n in zip(sizes, frequencies, strict=True)],
        "drafted_nothing": bool(verify_rows.max() == 1),
    }


def with_spine(steps: pd.DataFrame) -> pd.DataFrame:
    """The steps with a spine. An empty draft has one of length 0, but does not count where all others have none."""
    lengths = steps["num_draft_tokens"]
    known = steps[lengths.notna()]
    return known if lengths.notna().all() or (lengths > 0).any() else known.iloc[:0]


def _spine_metrics(steps: pd.DataFrame) -> dict[str, Any]:
    drafted, accepted = floats(steps["num_draft_tokens"]), floats(steps["num_accepted_spine"])
    if not len(drafted):
        return {name: None for name in _NAMES if "draft_tokens" in name or "acceptance" in name or "position" in name}
    longest = int(drafted.max())
    drafted_at = [int(np.sum(drafted > position)) for position in range(longest)]
    accepted_at = [int(np.sum(accepted > position)) for position in range(longest)]
    return {
        "num_draft_tokens": int(drafted.sum()),
        "draft_tokens_per_step": ratio(drafted.sum(), len(drafted)),
        "acceptance_rate": ratio(accepted.sum(), drafted.sum()),
        "tree_acceptance_rate": ratio(floats(steps["num_accepted"]).sum(), drafted.sum()),
        "acceptance_by_position": [a / d for a, d in zip(accepted_at, drafted_at, strict=True)],
        "drafted_by_position": drafted_at,
    }
