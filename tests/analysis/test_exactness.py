"""The table of answers that part from AR's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scripts.make_tables import main
from specbench.analysis.all_tables import all_tables
from specbench.analysis.run_tables import exactness_table
from specbench.results.opening import open_results
from specbench.results.published import load_published
from tests.results.folders import MODEL, Spec, write_run

PUBLISHED = Path(__file__).parents[2] / "results" / "published"

pytestmark = pytest.mark.usefixtures("few_draws")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("results")
    for spec in (Spec("a"), Spec("b", method="pld", controller="none"), Spec("c", "ar", "none", speedup=1, drafted=0)):
        write_run(root, spec)
    return root


def parted(frozen, run_id, **places):
    """The samples in which these conversations of a run part from AR's: sample id -> (index, gap, class)."""
    samples = frozen.samples.copy()
    for sample_id, place in places.items():
        here = (samples["run_id"] == run_id) & (samples["sample_id"] == sample_id) & (samples["arm"] == "method")
        samples.loc[here, "exact_match"] = False
        samples.loc[here, ["divergence_index", "divergence_gap", "divergence_class"]] = place
    return replace(frozen, samples=samples)


def rows_of(table):
    return [[cell.text for cell in row] for row in table.rows]


def test_one_row_a_method_says_where_and_how_widely_answers_part(folder):
    frozen = parted(open_results(folder), "a", q0=(3, 0.01, "tie"), q1=(9, 0.03, "tie"), q2=(30, 2.5, "bug"))
    table = exactness_table(frozen)
    assert table.columns[3:] == ("n", "exact", "diverged", "ties", "bugs", "position", "logit gap")
    assert rows_of(table) == [
        [f"{MODEL}, bfloat16", "gsm8k", "pld", "8", "8", "0", "0", "0", "-", "-"],
        [f"{MODEL}, bfloat16", "gsm8k", "sps", "8", "5", "3", "2", "1", "9", "0.0300"],
    ]


def test_attempts_that_do_not_count_part_from_nothing(folder):
    frozen = parted(open_results(folder), "a", q0=(3, 0.01, "tie"))
    unused = frozen.samples.assign(used=frozen.samples["used"] & (frozen.samples["sample_id"] != "q0"))
    (_, sps) = rows_of(exactness_table(replace(frozen, samples=unused)))
    assert sps[3:8] == ["7", "7", "0", "0", "0"]


def test_without_a_comparison_there_is_no_table_and_a_reason(folder):
    frozen = open_results(folder)
    frozen = replace(frozen, runs=frozen.runs.assign(num_compared=0))
    assert exactness_table(frozen) is None
    assert "exactness: no run was compared with AR" in all_tables(frozen, load_published(PUBLISHED)).missing


def test_the_command_writes_it(folder, tmp_path):
    assert main([str(folder), "--published", str(PUBLISHED), "--out", str(tmp_path)]) == 0
    assert "| sps | 8 | 8 | 0 | 0 | 0 | - | - |" in (tmp_path / "exactness.md").read_text(encoding="utf-8")
    assert (tmp_path / "exactness.tex").is_file()
