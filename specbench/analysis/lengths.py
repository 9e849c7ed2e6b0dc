"""How long drafts were, how much of them was accepted, and how long they should have been."""

from __future__ import annotations

import pandas as pd

from specbench.analysis.acceptance import with_spine
from specbench.analysis.replay import TokenOracle, steps_of, traces_of
from specbench.types import DataError


def accepted_by_drafted(steps: pd.DataFrame) -> pd.DataFrame:
    """One row a draft length k > 0: drafted, mean_accepted (spine tokens), num_steps."""
    chains = steps[steps["num_draft_tokens"].fillna(0) > 0]
    groups = chains.groupby("num_draft_tokens")["num_accepted_spine"]
    found = pd.DataFrame({"mean_accepted": groups.mean().astype(float), "num_steps": groups.size()})
    return found.rename_axis("drafted").reset_index()


def drafted_lengths(steps: pd.DataFrame) -> pd.DataFrame:
    """One row a draft length, 0 included: length, num_steps. Steps without a spine do not count."""
    counts = with_spine(steps)["num_draft_tokens"].astype(int).value_counts().sort_index()
    return counts.rename_axis("length").rename("num_steps").reset_index()


def oracle_lengths(steps: pd.DataFrame, longest: int) -> pd.DataFrame | None:
    """Draft lengths of the policy that always drafts just what will be accepted, at most `longest`; like above.

    From a replay of the same answers. None for trees, which cannot be replayed.
    """
    try:
        traces = traces_of(steps)
    except DataError:
        return None
    lengths = [step.drafted for trace in traces for step in steps_of(trace, TokenOracle(longest))]
    return drafted_lengths(pd.DataFrame({"num_draft_tokens": lengths}, dtype="Int64"))


def stop_reasons(steps: pd.DataFrame) -> pd.DataFrame:
    """One row a reason for which drafting ended: stop_reason, num_steps; only steps that say why."""
    counts = steps["stop_reason"].dropna().value_counts()
    return counts.rename_axis("stop_reason").rename("num_steps").reset_index()
