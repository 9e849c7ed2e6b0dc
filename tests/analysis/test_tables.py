from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from scripts.make_tables import main
from specbench.analysis.all_tables import all_tables
from specbench.analysis.headline import headline, labelled
from specbench.analysis.leaderboard import _number, leaderboard_rows, leaderboard_table
from specbench.analysis.ranking import mean_speedups, why
from specbench.analysis.sweep_tables import sweep_rows
from specbench.analysis.table_text import Cell, Table, latex, markdown
from specbench.analysis.tables import speedup_rows
from specbench.results.opening import open_results
from specbench.results.published import load_published
from specbench.types import DataError
from tests.results.folders import Spec, paper, write_run

PUBLISHED = Path(__file__).parents[2] / "results" / "published"


pytestmark = pytest.mark.usefixtures("few_draws")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return paper(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def frozen(folder):
    return open_results(folder)


@pytest.fixture(scope="module")
def tables(frozen):
    return {table.name: table for table in all_tables(frozen, load_published(PUBLISHED)).tables}


def cells(table, **where):
    """The rows of a table whose cells equal `where`, as dicts from column to cell."""
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    return [row for row in rows if all(row[name].text == text for name, text in where.items())]


def test_main_table_has_ours_and_published_in_rows_of_their_own(tables):
    (ours,) = cells(tables["confl_main"], source="ours", task="gsm8k")
    assert ours["ar"].text == "1.00"
    assert re.fullmatch(r"0\.70 \[0\.\d\d, 0\.\d\d\]", ours["confl"].text)
    assert ours["n"].text == "8"
    published = cells(tables["confl_main"], source="published", task="gsm8k")
    assert [(row["model"].text, row["swift"].text, row["confl"].text) for row in published] == [
        ("LLaMA-2-13B", "1.085 (l)", "1.125 (l)"),
        ("LLaMA-2-70B", "1.311 (l)", "1.342 (l)"),
    ]


def test_claims_say_that_they_are_maxima_and_doubtful_numbers_are_marked(tables):
    claims = cells(tables["pacer_main"], source="published", model="any")
    assert "up to 2.66 (p)" in [row["pacer"].text for row in claims]
    doubtful = cells(tables["pacer_main"], source="published", task="cnn_dm")
    assert doubtful[0]["pacer"].text == "1.71? (s)"


def test_bold_only_where_the_paired_interval_supports_it(tables):
    (row,) = cells(tables["pacer_main"], source="ours", task="gsm8k")
    assert [name for name, cell in row.items() if cell.bold] == ["pacer"]
    (row,) = cells(tables["knapspec_main"], source="ours", task="gsm8k")
    assert [name for name, cell in row.items() if cell.bold] == ["ar"]  # everything else is slower beyond its interval


def test_published_rows_are_never_bold(tables):
    for table in tables.values():
        published = [row for row in table.rows if row[0].text.startswith("published")]
        assert not any(cell.bold for row in published for cell in row)


def test_a_different_order_is_said_with_the_measured_reason(tables):
    notes = "\n".join(tables["confl_main"].notes)
    assert "order confl > swift > ar (LLaMA-2-13B on gsm8k, LLaMA-2-70B on gsm8k) is not ours" in notes
    assert "confl > ar > swift (LLaMA-2-13B on cnn_dm) is not ours: ar 1.00 > swift 0.80 > confl 0.70" in notes
    assert "1.40 times as long for 8 rows as for one" in notes
    assert re.search(r"confl: a step costs 4\.\d\d AR tokens \(30% drafting, 60% verifying", notes)


def test_an_equal_order_is_not_remarked_upon(tables):
    assert "is not ours" not in "\n".join(tables["pacer_main"].notes)


def test_price_of_a_step_is_what_the_rows_say(frozen):
    runs = headline(frozen.runs)
    assert mean_speedups(runs, ["sps", "pacer"]) == pytest.approx({"ar": 1.0, "sps": 1.3, "pacer": 1.5}, rel=0.02)
    sps = runs[(runs["arm"] == "sps") & (runs["place"] == "gsm8k")].iloc[0]
    text = why(runs[(runs["arm"] == "sps") & (runs["place"] == "gsm8k")])
    assert f"a step costs {sps['mat'] / sps['walltime_speedup']:.2f} AR tokens" in text


def test_the_leaderboard_splits_one_run_by_subset_and_joins_tasks(frozen):
    rows = leaderboard_rows(frozen)
    whole = rows[rows["source"] == "spec_bench"]
    assert set(whole["column"]) == {"mt_bench", "translation", "overall"}
    pld = whole[whole["arm"] == "pld"].set_index("column")
    assert pld.loc["overall", "n"] == pld.loc["mt_bench", "n"] + pld.loc["translation", "n"] == 16
    joined = rows[(rows["source"] == "tasks") & (rows["arm"] == "sps")].set_index("column")
    assert set(joined.index) == {"math_reasoning", "summarization", "overall"}
    assert joined.loc["overall", "n"] == 16
    assert joined.loc["overall", "speedup"] == pytest.approx(1.3, rel=0.02)


def test_the_published_boards_stand_below_ours(tables):
    board = tables["leaderboard"]
    sources = [row[0].text for row in board.rows]
    assert sources.index("published: A100 80 GB") > max(i for i, name in enumerate(sources) if name.startswith("ours"))
    (pld,) = cells(board, source="published: A100 80 GB", method="pld")
    assert (pld["summarization"].text, pld["mat"].text, pld["overall"].text) == ("2.66 (l)", "1.75 (l)", "1.66 (l)")


def test_a_noisy_number_of_the_leaderboard_is_called_so():
    row = {"speedup": 1.25, "ci_low": 1.1, "ci_high": 1.4, "best": True}
    assert _number(row | {"noisy": True}) == Cell("1.25 noisy", bold=True)
    assert _number(row | {"noisy": True}, interval=True) == Cell("1.25 [1.10, 1.40] noisy", bold=True)
    assert _number(row | {"noisy": False}) == _number(row) == Cell("1.25", bold=True)


def test_a_sweep_shows_the_keys_that_were_swept(frozen, tables):
    runs, swept = sweep_rows(frozen, "pacer_block_size")
    assert swept == ["cfg.method.controller.block_size"]
    assert list(runs["cfg.method.controller.block_size"]) == ["2", "3", "8"]
    table = tables["pacer_block_size"]
    assert [row["block_size"].text for row in cells(table) if row["speedup"].bold] == ["3"]


def test_acceptance_has_the_published_rates_beside(tables):
    (row,) = cells(tables["acceptance"], method="confl", task="gsm8k")
    assert row["published acceptance"].text == "LLaMA-2-13B 0.860 (l); LLaMA-2-70B 0.946 (l)"
    assert row["published mat"].text == "LLaMA-2-13B 3.39 (l); LLaMA-2-70B 3.62 (l)"
    assert 0.5 < float(row["acceptance"].text) < 0.7
    assert float(row["predicted"].text) > 0.7


def test_runs_say_commit_load_and_machine(tables):
    (row,) = cells(tables["runs"], method="sps", task="gsm8k")
    assert (row["commit"].text, row["load"].text, row["n"].text, row["new tokens"].text) == (
        "012345678",
        "0.5",
        "8",
        "96",
    )
    assert any("test CPU" in note and "torch 2.13.0" in note for note in tables["runs"].notes)


def test_the_run_that_speaks_for_a_method_is_the_headline_one(tmp_path):
    write_run(tmp_path, Spec("first", experiment="headline", conversations=8))
    write_run(tmp_path, Spec("second", experiment="all_methods", conversations=9))
    assert list(headline(open_results(tmp_path).runs)["run_id"]) == ["first"]


def test_the_run_that_speaks_for_a_method_is_a_main_one(tmp_path):
    write_run(tmp_path, Spec("ablation", experiment="pacer_threshold", conversations=9, speedup=2.0))
    write_run(tmp_path, Spec("main", experiment="pacer_main", speedup=1.4))
    assert list(headline(open_results(tmp_path).runs)["run_id"]) == ["main"]
    assert list(headline(open_results(tmp_path).runs, prefer=["pacer_threshold"])["run_id"]) == ["ablation"]


def test_a_draft_that_was_only_replayed_speaks_for_no_method(tmp_path):
    for name, method in (("ar", "ar"), ("decoded", "sps"), ("replayed", "sps")):
        write_run(tmp_path, Spec(name, method, conversations=9 if name == "replayed" else 8))
    runs = open_results(tmp_path).runs
    assert set(headline(runs)["run_id"]) == {"ar", "replayed"}  # the longer run
    runs["cfg.measure.acceptance"] = ["replay" if name in ("ar", "replayed") else "decode" for name in runs["run_id"]]
    assert set(headline(runs)["run_id"]) == {"ar", "decoded"}


def test_rules_of_one_draft_are_compared_without_their_own_keys(tmp_path):
    write_run(tmp_path, Spec("a", experiment="pacer_length_distribution", config={"controller": {"threshold": 0.5}}))
    svip = {"controller": {"entropy_threshold": 0.3}}
    write_run(tmp_path, Spec("b", controller="svip", experiment="pacer_length_distribution", config=svip, speedup=1.6))
    runs, swept = sweep_rows(open_results(tmp_path), "pacer_length_distribution")
    assert swept == []
    assert list(zip(runs["arm"], runs["best"], strict=True)) == [("sps", False), ("sps+svip", True)]


def test_a_bound_is_marked_and_wins_nothing(tmp_path):
    write_run(tmp_path, Spec("a", experiment="pacer_length_distribution"))
    write_run(tmp_path, Spec("b", controller="svip", experiment="pacer_length_distribution", speedup=1.6))
    oracle = Spec("c", controller="block_oracle", experiment="pacer_length_distribution", speedup=2.5)
    write_run(tmp_path, oracle)
    frozen = open_results(tmp_path)
    runs, _ = sweep_rows(frozen, "pacer_length_distribution")
    found = dict(zip(runs["arm"], runs["best"], strict=True))
    assert found == {"sps": False, "sps+block_oracle (bound)": False, "sps+svip": True}
    assert set(headline(frozen.runs)["arm"]) == {"sps", "sps+svip"}
    assert set(leaderboard_rows(frozen)["arm"]) == {"ar", "sps", "sps+svip"}


def test_the_leaderboard_says_which_published_order_is_not_ours(tmp_path):
    """pld is ahead of sps on one published board and behind it on the other."""
    for method, speedup in (("sps", 1.2), ("pld", 1.4)):
        write_run(tmp_path, Spec(method, method, task="spec_bench", speedup=speedup, categories=("writing", "qa")))
        write_run(tmp_path, Spec(f"{method}-gsm8k", method, speedup=2.6 - speedup))  # of another task, not compared
    notes = "\n".join(leaderboard_table(open_results(tmp_path), load_published(PUBLISHED)).notes)
    order = r"sps > pld > ar \(Vicuna-7B-v1.3, RTX 3090 24 GB on spec_bench\) is not ours: pld 1.4\d > sps 1.2"
    assert re.search(order, notes)
    assert notes.count("is not ours") == 1
    assert "A100 80 GB" not in notes
    assert "sps: a step costs" in notes


def test_long_documents_do_not_enter_the_leaderboard(tmp_path):
    write_run(tmp_path, Spec("a"))
    write_run(tmp_path, Spec("b", task="longdoc"))
    rows = leaderboard_rows(open_results(tmp_path))
    assert set(rows["column"]) == {"math_reasoning", "overall"}


def test_controllers_are_named_only_where_there_are_several(tmp_path):
    write_run(tmp_path, Spec("a"))
    write_run(tmp_path, Spec("b", controller="svip"))
    write_run(tmp_path, Spec("c", method="knapspec", controller="confidence", task="longdoc"))
    runs = labelled(open_results(tmp_path).runs).set_index("run_id")
    assert dict(runs["arm"]) == {"a": "sps", "b": "sps+svip", "c": "knapspec"}
    assert runs.loc["c", "place"] == "longdoc 1024"


def test_speedup_rows_are_a_frame_for_notebooks(frozen):
    rows = speedup_rows(frozen)
    best = rows[rows["best"]]
    assert set(best["arm"]) == {"pacer", "pld"}
    assert not rows["ar_best"].any()


def test_markdown_and_latex_say_the_same():
    row = (Cell("a_b & 100 %"), Cell("1.25 [1.1, 1.4]", bold=True))
    table = Table("one_table", "Speed & cost", ("name", "x|y"), (row,), ("50 % of <n>",))
    assert markdown(table).splitlines() == [
        "# Speed & cost", "", "| name | x\\|y |", "| --- | --- |", "| a_b & 100 % | **1.25 [1.1, 1.4]** |", "",
        "- 50 % of <n>",
    ]  # fmt: skip
    text = latex(table)
    assert r"a\_b \& 100 \% & \textbf{1.25 [1.1, 1.4]} \\" in text
    assert r"\begin{tabular}{lr}" in text
    assert r"\caption{Speed \& cost}" in text
    assert [line for line in text.splitlines() if line.startswith("\\") and "rule" in line] == [
        r"\toprule", r"\midrule", r"\bottomrule",
    ]  # fmt: skip


def test_every_table_is_well_formed_latex(tables):
    for table in tables.values():
        text = latex(table)
        assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
        body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
        lines = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert {len(re.findall(r"(?<!\\)&", line)) for line in lines} == {len(table.columns) - 1}
        assert not re.search(r"(?<!\\)[_%#$]", body)


def test_a_row_of_another_width_is_refused():
    with pytest.raises(ValueError, match="2 cells for 1 columns"):
        Table("t", "t", ("a",), ((Cell("1"), Cell("2")),))


def test_the_command_writes_both_forms_and_names_what_is_missing(tmp_path, capsys):
    write_run(tmp_path, Spec("a"))
    write_run(tmp_path, Spec("b", experiment="pacer_block_size"))
    assert main([str(tmp_path), "--published", str(PUBLISHED), "--out", str(tmp_path / "out")]) == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"leaderboard.md", "leaderboard.tex", "pacer_main.md", "pacer_block_size.tex"} <= names
    missing = capsys.readouterr().err
    assert "not made: mla_main, mla_counts, mla_train_params: no cells of experiment=mla_matched" in missing
    assert "not made: confl_main: no run of swift, confl" in missing


def test_a_folder_without_results_is_an_error(tmp_path, capsys):
    with pytest.raises(DataError, match="neither frozen results nor runs"):
        open_results(tmp_path)
    assert main([str(tmp_path), "--published", str(PUBLISHED), "--out", str(tmp_path / "out")]) == 2
    assert "neither frozen results nor runs" in capsys.readouterr().err


def test_nothing_of_ours_comes_from_published_numbers(frozen):
    empty = load_published(PUBLISHED).iloc[:0]
    with_published = {t.name: t for t in all_tables(frozen, load_published(PUBLISHED)).tables}
    for table in all_tables(frozen, empty).tables:
        ours = [row for row in with_published[table.name].rows if not row[0].text.startswith("published")]
        pd.testing.assert_frame_equal(_texts(table.rows, table), _texts(ours, table))


def _texts(rows, table):
    """Cells as text, without the columns that hold published numbers."""
    frame = pd.DataFrame([[cell.text for cell in row] for row in rows], columns=list(table.columns))
    return frame.drop(columns=[name for name in table.columns if name.startswith("published")])
