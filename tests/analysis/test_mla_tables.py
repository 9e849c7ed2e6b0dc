"""Tables of matched cells: both rules, the rates that are compared, and the ablation of the tuned parts."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from specbench.analysis import mla_tables
from specbench.results.frozen import load_frozen
from specbench.results.published import load_published
from tests.analysis.test_tables import PUBLISHED, cells
from tests.figures.conftest import cells as made_up_cells

pytestmark = pytest.mark.usefixtures("few_draws")


@pytest.fixture(scope="module")
def frozen(tmp_path_factory):
    return load_frozen(tmp_path_factory.mktemp("paper"))


def made_of(frozen):
    """The tables of a folder by name."""
    published = load_published(PUBLISHED)
    made = [mla_tables.mla_table(frozen, published), mla_tables.mla_counts(frozen, published)]
    return {table.name: table for table in [*made, mla_tables.train_params_table(frozen)] if table is not None}


def test_cells_are_counted_by_both_rules_beside_the_published_counts(frozen):
    with_cells = replace(frozen, cells=made_up_cells())
    made = made_of(with_cells)
    counts = made["mla_counts"]
    (ours,) = cells(counts, source="ours")
    assert (ours["converter"].text, ours["cells"].text) == ("transmla", "3")
    assert [ours[f"{label} (our rule)"].text for label in ("improved", "unchanged", "worse")] == ["1", "1", "1"]
    (whole,) = cells(counts, pair="all pairs")
    assert [whole[f"{label} (published rule)"].text for label in ("improved", "unchanged", "worse")] == [
        "37 (p)", "26 (p)", "1 (p)",
    ]  # fmt: skip
    assert whole["cells"].text == "64"


def test_a_cell_shows_all_variants_and_is_bold_where_it_is_judged(frozen):
    with_cells = replace(frozen, cells=made_up_cells())
    made = made_of(with_cells)
    (better,) = cells(made["mla_main"], source="ours", task="gsm8k")
    assert (better["our rule"].text, better["our rule"].bold) == ("improved", True)
    assert better["original"].text == "-"
    rates = [float(better[variant].text) for variant in ("none", "kv", "functional")]
    assert rates == sorted(rates)
    assert better["functional - kv (pp)"].text.startswith(f"{rates[2] - rates[1]:+.1f}"[:4])
    (same,) = cells(made["mla_main"], source="ours", task="cnn_dm")
    assert (same["our rule"].text, same["our rule"].bold) == ("unchanged", False)
    (known,) = cells(made["mla_main"], source="published", pair="Llama-1B")
    assert [known[name].text for name in ("original", "kv", "functional")] == ["77.75 (s)", "67.61 (s)", "71.53 (s)"]


def test_cells_stand_in_order_whatever_order_runs_are_in(frozen):
    rows = pd.concat([made_up_cells().assign(converter=name) for name in ("transmla", "mha2mla")], ignore_index=True)
    with_cells = replace(frozen, cells=rows.sample(frac=1, random_state=0, ignore_index=True))
    ours = cells(made_of(with_cells)["mla_main"], source="ours")
    names = [(row["converter"].text, row["task"].text) for row in ours]
    assert names == sorted(names)
    assert len(names) == 6


def test_a_cell_shows_the_rates_that_are_compared(frozen):
    """Of prompts that both arms have; and settings in which cells differ are named."""
    rows = made_up_cells()
    few = rows[(rows["variant"] != "functional") | (rows["sample_id"].str[1:].astype(int) < 12)]
    other = rows.assign(setting="bfloat16")
    with_cells = replace(frozen, cells=pd.concat([few, other], ignore_index=True))
    made = made_of(with_cells)
    ours = cells(made["mla_main"], source="ours")
    assert {row["task"].text.partition(", ")[2] for row in ours} == {"float32", "bfloat16"}
    for row in ours:
        delta = float(row["functional"].text) - float(row["kv"].text)
        assert float(row["functional - kv (pp)"].text.split()[0]) == pytest.approx(delta, abs=0.011)


def test_tuned_parts_have_a_table_of_their_own(frozen):
    tuned = made_up_cells()
    less = tuned[tuned["variant"] == "functional"].assign(tuning='{"train_params": "qk"}')
    less["accepted"] -= 10
    with_cells = replace(frozen, cells=pd.concat([tuned, less], ignore_index=True))
    made = made_of(with_cells)
    for row in cells(made["mla_train_params"], source="ours"):
        assert row["qk - qkv (pp)"].text.startswith("-5.00")
        assert row["qk - qkv (pp)"].bold
        assert row["qk_down"].text == "-"
    without = made_of(replace(frozen, cells=tuned))
    assert "mla_train_params" not in without
    assert made["mla_counts"].rows == without["mla_counts"].rows
