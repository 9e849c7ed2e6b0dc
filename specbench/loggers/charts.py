"""What the charts of one run show, as frames: derived from its files, so that a live and a later mirror agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from specbench.analysis.rows import own_steps
from specbench.analysis.skipping import expanded
from specbench.analysis.speed import PHASES
from specbench.loggers.base import Row

MILLISECONDS = 1000.0
LAYER_COLUMNS = (
    "num_attention_skipped",
    "num_mlp_skipped",
    "predicted_acceptance",
    "measured_acceptance",
    "predicted_tokens_per_second",
    "search_s",
)
_NUMBERS = ("context_length", *LAYER_COLUMNS)


def by_position(summary: Mapping[str, Any]) -> pd.DataFrame:
    """Acceptance of each position of the draft and how often it was drafted; no rows without a spine."""
    accepted, drafted = summary.get("acceptance_by_position"), summary.get("drafted_by_position")
    rows = zip(accepted or (), drafted or (), strict=True)
    return pd.DataFrame(
        [(position, share, count) for position, (share, count) in enumerate(rows, start=1)],
        columns=["position", "acceptance_rate", "num_drafted"],
    )


def by_phase(summary: Mapping[str, Any]) -> pd.DataFrame:
    """Milliseconds an emitted token of each phase, AR's whole token beside them; no rows without phases."""
    tpot = summary.get("tpot_s")
    shares = {name.removesuffix("_s"): summary.get(name.replace("_s", "_share")) for name in PHASES}
    rows = [(phase, tpot * share * MILLISECONDS) for phase, share in shares.items() if tpot and share is not None]
    baseline = summary.get("baseline_tpot_s")
    if rows and baseline:
        rows.append(("AR, whole token", baseline * MILLISECONDS))
    return pd.DataFrame(rows, columns=["phase", "ms_per_token"])


def verify_cost(summary: Mapping[str, Any]) -> pd.DataFrame:
    """Price of a target pass over T rows in passes over one: t(T) / t(1)."""
    curve = [(int(rows), float(seconds)) for rows, seconds in summary.get("t_curve") or ()]
    return pd.DataFrame([(rows, seconds / curve[0][1]) for rows, seconds in curve], columns=["rows", "relative_cost"])


def layer_choices(samples: pd.DataFrame, choices: pd.DataFrame) -> Iterator[dict[str, float]]:
    """The numbers of each choice of layers of the counted samples; what a method does not know is left out."""
    made = expanded(own_steps(samples, choices[choices["kind"] == "skip_set"]), LAYER_COLUMNS)
    for number, (_, row) in enumerate(made.iterrows(), start=1):
        known = {name: float(row[name]) for name in _NUMBERS if row[name] is not None and pd.notna(row[name])}
        yield {"choice": number, **{f"layers/{name}": value for name, value in known.items()}}


def conversations(samples: pd.DataFrame) -> Iterator[list[Row]]:
    """The sample rows of one conversation after the other, in the order in which they were decoded."""
    plain = samples.astype(object).where(samples.notna(), None)
    begun = samples.groupby("sample_id")["started_at"].min()  # skipped samples never began: they come last
    for sample_id in begun.sort_values(kind="stable", na_position="last").index:
        yield plain[plain["sample_id"] == sample_id].to_dict("records")
