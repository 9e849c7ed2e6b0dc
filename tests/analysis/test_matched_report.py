"""The closing text of matched cells: the same whatever the order of runs, every tuning named, half counted."""

from __future__ import annotations

import pandas as pd
import pytest

from specbench.analysis.matched_report import report_of
from tests.figures.conftest import cells as made_up_cells
from tests.figures.conftest import reconstruction

pytestmark = pytest.mark.usefixtures("few_draws")


def all_arms() -> pd.DataFrame:
    """Three tasks with an original draft and two tunings of the functional variant."""
    tuned = made_up_cells()
    original = tuned[tuned["variant"] == "none"].assign(variant="original", converter="none", budget=1.0)
    original["accepted"] = original["proposed"]
    less = tuned[tuned["variant"] == "functional"].assign(tuning='{"train_params": "qk"}')
    return pd.concat([tuned, original, less], ignore_index=True)


def written(cells: pd.DataFrame) -> str:
    runs = pd.DataFrame({"run_id": cells["run_id"].unique(), "tokens_per_second": None})
    return report_of(cells, reconstruction(), runs.assign(draft_kv_bytes_per_token=512.0))


def test_the_order_of_runs_changes_nothing() -> None:
    cells = all_arms()
    shuffled = [cells.sample(frac=1, random_state=seed, ignore_index=True) for seed in range(3)]
    assert {written(each) for each in shuffled} == {written(cells)}


def test_what_was_given_back_names_the_tuning() -> None:
    text = written(all_arms())
    block = next(part for part in text.split("\n\n") if part.startswith("Acceptance that tuning gave back"))
    *rows, last = block.splitlines()[2:]
    assert len(rows) == 6
    assert sum("train_params=qk " in row for row in rows) == 3
    shares = [float(row.split()[-1].rstrip("%")) for row in rows]
    assert last == f"at least half given back in {sum(share >= 50 for share in shares)} of 6 cells"


def test_nothing_to_report_is_said() -> None:
    assert report_of(made_up_cells().iloc[:0], reconstruction(), pd.DataFrame()) == "no finished runs of method=mla"
