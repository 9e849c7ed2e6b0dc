from __future__ import annotations

import math
from pathlib import Path

import pytest

from specbench.results.published import COLUMNS, QUALITIES, load_published
from specbench.types import DataError

SHIPPED = Path(__file__).parents[2] / "results" / "published"
ROW = ["confl", "logs", "LLaMA-2-13B", "gsm8k", "", "confl", "speedup", "1.125", "from logs", "no", "logs"]


def write(folder, *rows, header=COLUMNS):
    (folder / "one.csv").write_text("\n".join(",".join(cells) for cells in [header, *rows]) + "\n")
    return folder


def test_shipped_numbers_pass_the_check_and_cover_every_paper():
    published = load_published(SHIPPED)
    assert {"knapspec", "confl", "swift", "pacer", "ouroboros", "mla", "spec_bench"} <= set(published["paper"])
    assert set(published["quality"]) == set(QUALITIES)
    assert published["value"].map(math.isfinite).all()
    assert published["doubtful"].dtype == bool
    assert published["doubtful"].any()


def test_shipped_counts_of_cells_add_up_to_the_papers_grid():
    published = load_published(SHIPPED)
    whole = published[(published["paper"] == "mla") & (published["model"] == "all pairs")].set_index("metric")["value"]
    assert whole[["cells_up", "cells_unchanged", "cells_down"]].sum() == 64
    assert whole[["cells_faster", "cells_same_speed", "cells_slower"]].sum() == 64


def test_no_speedup_is_a_percentage_and_no_rate_is_above_one():
    published = load_published(SHIPPED)
    speedups = published[published["metric"].isin(["speedup", "cumulative_speedup"])]["value"]
    assert speedups.between(0.2, 6).all()
    rates = published[published["metric"].isin(["acceptance_rate", "skip_ratio"])]["value"]
    assert rates.between(0, 1).all()


def test_a_good_file_is_read(tmp_path):
    second = [*ROW[:6], "acceptance_rate", ".860", *ROW[8:]]
    frame = load_published(write(tmp_path, ROW, second))
    assert tuple(frame.columns) == (*COLUMNS, "text")
    assert list(frame["value"]) == [1.125, 0.86]
    assert list(frame["text"]) == ["1.125", "0.860"]
    assert not frame.loc[0, "doubtful"]


@pytest.mark.parametrize(
    ("place", "cell", "message"),
    [
        (8, "hearsay", "quality=hearsay; legal: paper, second-hand, from logs"),
        (9, "maybe", "doubtful=maybe; legal: yes, no"),
        (7, "fast", "value=fast is not a number"),
        (7, "nan", "value=nan is not a number"),
        (5, "", "empty .*'method'"),
    ],
)
def test_a_wrong_cell_is_named_with_its_line(tmp_path, place, cell, message):
    row = [*ROW]
    row[place] = cell
    with pytest.raises(DataError, match=rf"one.csv:2: {message}"):
        load_published(write(tmp_path, row))


def test_a_number_given_twice_is_refused(tmp_path):
    again = [*ROW]
    again[7] = "1.2"
    with pytest.raises(DataError, match=r"one.csv:3: the same number as .*one.csv:2"):
        load_published(write(tmp_path, ROW, again))


@pytest.mark.parametrize("row", [ROW[:-1], [*ROW, "more"]])
def test_a_line_with_another_number_of_cells_is_refused(tmp_path, row):
    with pytest.raises(DataError, match="11 cells expected"):
        load_published(write(tmp_path, row))


def test_a_wrong_header_and_an_empty_folder_are_refused(tmp_path):
    with pytest.raises(DataError, match="no CSV files"):
        load_published(tmp_path)
    with pytest.raises(DataError, match="header"):
        load_published(write(tmp_path, ROW[:-1], header=COLUMNS[:-1]))
