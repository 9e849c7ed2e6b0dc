"""The run that speaks for a method on a task, out of a folder of runs that also holds sweeps and ablations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from specbench.analysis.conditions import with_conditions
from specbench.analysis.table_text import missing
from specbench.results.store import FINISHED

# A row of a table: what must be equal for two methods to be comparable.
PLACE = ["model", "dtype", "sampling", "place", "conditions"]
_ACCEPTANCE = "cfg.measure.acceptance"
_PLAIN = ("none", "fixed")
# Ends of the names of experiments that run methods as they come; others speak for one only where none of these does.
_FIRST = ("headline", "_main", "_leaderboard", "longdoc", "all_methods")
# Experiments whose runs vary the settings of one method, so that they do not speak for it.
_VARIED = {
    *("knapspec_decoupling", "knapspec_latency_fit", "knapspec_tpt_vs_throughput", "draft_vocab"),
    *("confl_lambda", "confl_window", "confl_sensitivity", "pacer_block_size", "pacer_threshold"),
}


def labelled(runs: pd.DataFrame) -> pd.DataFrame:
    """Finished runs with five more columns.

    `arm` = the method, with `+controller` where the method occurs with several controllers and this one is not the
    plain one, and `(bound)` behind what is no method; `place` = the task, with its context length for long documents;
    `sampling` = greedy or the temperature; `conditions` and `remark` = what else must be equal (conditions.py).
    """
    runs = runs[runs["status"] == FINISHED].copy()  # in one piece: a frame of many columns is in many
    several = runs.groupby("method")["controller"].nunique()
    arms = [_arm(row, several=bool(several.get(row["method"], 0) > 1)) for row in runs.to_dict("records")]
    places = [_place(row) for row in runs.to_dict("records")]
    sampling = [_sampling(row) for row in runs.to_dict("records")]
    return with_conditions(runs.assign(arm=arms, place=places, sampling=sampling))


def headline(runs: pd.DataFrame, *, prefer: Iterable[str] = ()) -> pd.DataFrame:
    """One row of `labelled(runs)` for each PLACE and arm.

    A bound that knows the answer ranks among no methods; a draft that was only replayed has tables of its own.

    Of several runs the first of these wins: it belongs to an experiment in `prefer`; to one of _FIRST, in their order;
    it was timed; it has more conversations; its run id comes first.
    """
    known = labelled(runs)
    known = known[~is_bound(known) & ~_is_replayed(known)]
    if known.empty:
        return known
    names = set(prefer)
    rank = pd.DataFrame({"preferred": [_preference(row, names) for row in known.to_dict("records")]}, known.index)
    rank["untimed"] = known["walltime_speedup"].isna()
    rank["few"] = -pd.to_numeric(known["num_measured"])
    rank["run_id"] = known["run_id"]
    ordered = known.loc[rank.sort_values(list(rank.columns)).index]
    return ordered.drop_duplicates([*PLACE, "arm"]).sort_values([*PLACE, "arm"], ignore_index=True).copy()


def as_they_come(runs: pd.DataFrame) -> pd.DataFrame:
    """`runs` without those that an experiment made only to vary a method's settings."""
    varied = [bool(names) and names <= _VARIED for names in map(_experiments, runs.to_dict("records"))]
    return runs[~pd.Series(varied, index=runs.index, dtype=bool)]


def is_bound(runs: pd.DataFrame) -> pd.Series:
    """Which runs are bounds and no methods."""
    return runs["bound"].eq(True) if "bound" in runs else pd.Series(False, index=runs.index)


def _is_replayed(runs: pd.DataFrame) -> pd.Series:
    """Which runs took AR's answers and no steps of their own: cells of matched drafts."""
    if _ACCEPTANCE not in runs:
        return pd.Series(False, index=runs.index)
    return runs[_ACCEPTANCE].eq("replay") & runs["method"].ne("ar")


def marked(name: str, run: Mapping[Any, Any]) -> str:
    """`name`, and behind it that the run is a bound where it is one."""
    return f"{name} (bound)" if run.get("bound") is True else name


def records(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """One dict a run without its missing values, as a summary of one run has them."""
    return [{str(key): value for key, value in row.items() if not missing(value)} for row in runs.to_dict("records")]


def model_name(row: Mapping[Any, Any]) -> str:
    """The model as tables call it, with the number format."""
    shown = row.get("model_name")
    return f"{shown if isinstance(shown, str) else row['model']}, {row['dtype']}"


def setting(row: Mapping[Any, Any]) -> str:
    """The task, the temperature where answers were sampled, and conditions that differ from those of other rows."""
    sampled = "" if row["sampling"] == "greedy" else row["sampling"]
    return ", ".join(filter(None, [str(row["place"]), sampled, row.get("remark")]))


def _preference(row: dict[Any, Any], names: set[str]) -> int:
    """Smaller is better."""
    experiments = _experiments(row)
    if names & experiments:
        return -1
    return next((place for place, end in enumerate(_FIRST) if any(n.endswith(end) for n in experiments)), len(_FIRST))


def _experiments(row: dict[Any, Any]) -> set[str]:
    names = row.get("experiments")
    return set() if names is None or isinstance(names, float) else set(names)


def _arm(row: dict[Any, Any], *, several: bool) -> str:
    method, controller = str(row["method"]), row["controller"]
    plain = not isinstance(controller, str) or controller in _PLAIN
    name = method if plain or not several else f"{method}+{controller}"
    return marked(name, row)


def _place(row: dict[Any, Any]) -> str:
    tokens: Any = row.get("cfg.task.context_tokens")
    task = str(row["task"])
    return f"{task} {int(tokens)}" if task.startswith("longdoc") and not missing(tokens) else task


def _sampling(row: dict[Any, Any]) -> str:
    temperature: Any = row.get("cfg.sampling.temperature")
    return "greedy" if missing(temperature) or float(temperature) == 0 else f"T={float(temperature):g}"
