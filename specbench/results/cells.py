"""Runs of converted drafts as rows of matched cells: one a prompt and arm, and one a layer and arm.

An arm is what a finished run of `method=mla` drafted with. Nothing is stored here: the rows are made of the runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from specbench.config.trees import flatten
from specbench.results.files import read_json
from specbench.results.schema import DERIVED, METHOD, WITHOUT_NUMBERS, to_frame
from specbench.results.store import is_finished
from specbench.results.summary import load_config, load_samples, run_folders

ORIGINAL = "original"
VARIANTS = (ORIGINAL, "none", "kv", "functional")
_TUNING = ("train_params", "reconstruct.")
_OF_CARE = ("factor", "ranks")  # what the name stands for
# Not a choice of the conversion: who drafts how, and what has a column of its own.
_NOT_OPTIONS = (
    *("_target_", "name", "scope", "verification", "controller."),
    *("source", "folder", "converter", "budget", "reconstruction"),
)

Row = dict[str, Any]


def load_cells(root: str | Path) -> pd.DataFrame:
    """One row a conversation and finished run of `method=mla` below `root`; the columns are CELL_COLUMNS."""
    return _frame("cells", _rows(root, _cell_rows))


def load_reconstruction(root: str | Path) -> pd.DataFrame:
    """One row a layer and finished run of a converted draft below `root`; the columns are RECONSTRUCTION_COLUMNS."""
    return _frame("reconstruction", _rows(root, _layer_rows))


def arm_of(config: Mapping[str, Any]) -> Row:
    """Pair, converter, budget, variant and options of one run of `method=mla`, from its stored configuration."""
    method = config["method"]
    original, converter = method["converter"] == "none", _converter(method)
    said = (*_NOT_OPTIONS, *(_OF_CARE if converter == "care" else ()))
    flat = {key: value for key, value in flatten(method).items() if not key.startswith(said)}
    tuned = not original and method["reconstruction"] != "none"
    return {
        "pair": _pair(config["model"], method["source"]),
        "converter": converter,
        "budget": float(method["budget"]),
        "variant": ORIGINAL if original else method["reconstruction"],
        "options": _json({} if original else {k: v for k, v in flat.items() if not k.startswith(_TUNING)}),
        "tuning": _json({k: v for k, v in flat.items() if k.startswith(_TUNING)} if tuned else {}),
    }


def _rows(root: str | Path, rows_of: Callable[[Path, Mapping[str, Any], Row], Iterable[Row]]) -> list[Row]:
    found: list[Row] = []
    for run_dir in run_folders(root):
        if not is_finished(run_dir):
            continue
        config = load_config(run_dir)
        if config["method"]["name"] == "mla":
            found += rows_of(run_dir, config, {"run_id": run_dir.name, **arm_of(config)})
    return found


def _cell_rows(run_dir: Path, config: Mapping[str, Any], arm: Row) -> list[Row]:
    samples = load_samples(run_dir)
    rows = samples[(samples["arm"] == METHOD) & samples["used"]]
    lost = rows.loc[rows["finish_reason"].isin(WITHOUT_NUMBERS), "sample_id"]
    rows = rows[~rows["sample_id"].isin(lost)].sort_values(["turn", "repeat"])
    sums = rows.groupby("sample_id", sort=True).agg(
        task=("task", "first"),
        prompt_sha256=("prompt_sha256", "first"),
        accepted=("num_accepted_spine", "sum"),
        proposed=("num_draft_tokens", "sum"),
        emitted=("num_tokens", "sum"),
        steps=("num_steps", "sum"),
    )
    shared = {**arm, "setting": _setting(config), "acceptance": config["measure"].get("acceptance", "decode")}
    return [shared | {str(key): value for key, value in row.items()} for row in sums.reset_index().to_dict("records")]


def _layer_rows(run_dir: Path, config: Mapping[str, Any], arm: Row) -> list[Row]:
    layers = read_json(run_dir / "summary.json").get("conversion", {}).get("layers", [])
    names = ("layer", "rank", "error_before", "error_after", "seconds")
    return [{**arm, **{name: layer.get(name) for name in names}} for layer in layers]


def _setting(config: Mapping[str, Any]) -> str:
    drafted = config["method"]["controller"]["num_draft_tokens"]
    new = config["sampling"]["max_new_tokens"]
    return f"{config['hardware']['dtype']}, {drafted} drafted, {new} new"


def _pair(model: Mapping[str, Any], source: str) -> str:
    target, draft = model["target"], model["draft"]
    converted = target if source == "target" or draft is None else draft
    return f"{model['name']} <- {'itself' if converted == target else str(converted).rpartition('/')[2]}"


def _converter(method: Mapping[str, Any]) -> str:
    """The resolved config says mha2mla, whitened, ranks care where the user wrote `care`."""
    shorthand = (method["converter"], method["factor"], method["ranks"]) == ("mha2mla", "whitened", "care")
    return "care" if shorthand else str(method["converter"])


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(dict(sorted(values.items())))


def _frame(name: str, rows: list[Row]) -> pd.DataFrame:
    return to_frame(pa.Table.from_pylist(rows, schema=DERIVED[name]))
