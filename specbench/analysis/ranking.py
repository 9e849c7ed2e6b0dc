"""Where our order of methods differs from a published one, and what the measured steps say about why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from specbench.analysis.comparison import AR
from specbench.analysis.headline import PLACE, records
from specbench.analysis.rows import ratio
from specbench.analysis.theory import curve_of
from specbench.hardware.profile import seconds


def ranking_notes(ours: pd.DataFrame, theirs: pd.DataFrame, arms: Sequence[str]) -> list[str]:
    """One sentence for every published order of methods that is not ours, then one a method that says why.

    `ours`: rows of `headline`; `theirs`: published speedups. Only methods that both measured are ordered, AR as 1. A
    published cell is compared with our runs of the same task; where there are none, with our mean over other tasks.
    """
    cells: dict[tuple[str, str], list[str]] = {}
    involved: dict[str, None] = {}
    for (_, model, task), cell in theirs[theirs["metric"] == "speedup"].groupby(["paper", "model", "task"], sort=False):
        published = {str(m): float(v) for m, v in zip(cell["method"], cell["value"], strict=True) if m in arms}
        here, where = _measured(ours, [name for name in published if name != AR], str(task))
        published = {AR: 1.0} | {name: value for name, value in published.items() if name in here}
        if len(published) > 1 and order(published) != order(here):
            cells.setdefault((" > ".join(order(published)), f"{_text(here)}{where}"), []).append(f"{model} on {task}")
            involved |= dict.fromkeys(name for name in order(published) if name != AR)
    notes = [
        f"The published order {names} ({', '.join(places)}) is not ours: {said}."
        for (names, said), places in cells.items()
    ]
    reasons = [why(ours[ours["arm"] == name]) for name in involved]
    return [*notes, *filter(None, reasons), *(_passes(ours) if notes else ())]


def _measured(ours: pd.DataFrame, names: Sequence[str], task: str) -> tuple[dict[str, float], str]:
    """Our speedups of `names` on `task`, or else over all tasks that they share; and words for which it was."""
    same = mean_speedups(ours[ours["task"].astype(str).str.removesuffix("_mini") == task], names)
    if same:
        return same, f" on {task}"
    return mean_speedups(ours, names), ", geometric means over the tasks that all of them have here"


def _passes(ours: pd.DataFrame) -> list[str]:
    """What a pass over several rows costs here: verification that is not nearly free is a reason by itself."""
    curves = [curve_of(run["t_curve"]) for run in records(ours) if "t_curve" in run]
    known = next((curve for curve in curves if curve is not None), None)
    if known is None:
        return []
    factor = seconds(known, 8) / seconds(known, 1)
    return [
        f"Here the target needs {factor:.2f} times as long for 8 rows as for one; a GPU that waits for its weights "
        "needs hardly longer."
    ]


def order(speedups: Mapping[str, float]) -> list[str]:
    """Names from fast to slow."""
    return sorted(speedups, key=lambda name: -speedups[name])


def mean_speedups(ours: pd.DataFrame, names: Sequence[str]) -> dict[str, float]:
    """Geometric mean speedup of those of `names` that we measured, over the places where all of them are; AR is 1."""
    measured = ours[ours["walltime_speedup"].notna() & ours["arm"].isin(names)]
    if measured.empty:
        return {}
    table = measured.pivot_table(index=PLACE, columns="arm", values="walltime_speedup").dropna()
    means = {str(arm): math.exp(table[arm].map(math.log).mean()) for arm in table.columns if len(table)}
    return {AR: 1.0} | means if means else {}


def why(runs: pd.DataFrame) -> str | None:
    """What a step of one method cost and gave, over its runs; None where no steps were timed.

    The price of a step in AR tokens is mat / speedup, because speedup = tokens a step / price of a step. Runs are
    weighed by their steps, acceptance by drafted tokens.
    """
    known = runs[runs["walltime_speedup"].notna() & runs["mat"].notna()].reindex(columns=_NEEDED)
    price = weighted(known["mat"] / known["walltime_speedup"], known["num_steps"])
    tokens = weighted(known["mat"], known["num_steps"])
    if price is None or tokens is None:
        return None
    shares = [f"{_share(known, name):.0%} {word}" for name, word in _PHASES.items()]
    text = f"{known['arm'].iloc[0]}: a step costs {price:.2f} AR tokens ({', '.join(shares)}) and gives {tokens:.2f}"
    cost, accepted = (weighted(known[name], known["num_draft_tokens"]) for name in ("cost_ratio", "acceptance_rate"))
    if cost is not None and accepted is not None:
        text += f"; a drafted token costs {cost:.2f} of an AR token and {accepted:.0%} of them are accepted"
    return f"{text}."


_COUNTS = ("num_steps", "num_draft_tokens", "cost_ratio", "acceptance_rate", "decode_s")
_PHASES = {"draft_s": "drafting", "verify_s": "verifying", "adapt_s": "learning and searching", "host_s": "host"}
_NEEDED = ["arm", "walltime_speedup", "mat", *_COUNTS, *_PHASES]


def _share(runs: pd.DataFrame, phase: str) -> float:
    return float(runs[phase].sum() / runs["decode_s"].sum())


def weighted(values: pd.Series, weights: pd.Series) -> float | None:
    """Mean of the rows that have both; None without any."""
    numbers, mass = (pd.to_numeric(column).astype("float64") for column in (values, weights))
    known = numbers.notna() & mass.notna()
    return ratio(float((numbers[known] * mass[known]).sum()), float(mass[known].sum()))


def _text(speedups: Mapping[str, float]) -> str:
    return " > ".join(f"{name} {speedups[name]:.2f}" for name in order(speedups))
