from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
import pandas as pd
import pytest

from specbench.results.schema import KEY, TABLES, choice_row, empty_frame, step_row, to_frame, to_table
from specbench.types import ChoiceRecord, DataError, StepRecord
from tests.results.rows import KEY_DEFAULTS, choice, failed, sample, step


@pytest.mark.parametrize(("table", "record"), [("steps", StepRecord), ("choices", ChoiceRecord)])
def test_columns_are_the_key_and_every_field_of_the_record(table, record):
    assert TABLES[table].names == [*KEY, *(field.name for field in fields(record))]


@pytest.mark.parametrize("name", ["samples", "steps", "choices"])
def test_every_column_is_documented(name):
    assert all(len(field.metadata[b"doc"]) > 5 for field in TABLES[name])


def test_rows_survive_the_table():
    rows = [sample("a", text="naïve ☃"), sample("b", exact_match=True, num_steps=3)]
    frame = to_frame(to_table("samples", rows))
    assert frame["text"][0] == "naïve ☃"
    assert frame["exact_match"].isna().tolist() == [True, False]
    assert frame["num_steps"].tolist()[1] == 3
    assert isinstance(frame["num_steps"].tolist()[1], int)
    assert list(frame["tokens"][0]) == list(range(10))


def test_info_takes_what_drafters_note():
    note = {"score": np.float32(0.5), "skip": np.array([1, 2]), "set": {3, 1}, "pair": (1, 2)}
    record = StepRecord(0, 5, None, 3, 2, 1, 0, 2, 0.1, 0.2, 0.0, 0.0, (7, 8, 9), note)
    row = step_row({"sample_id": "s", **KEY_DEFAULTS}, record)
    assert json.loads(row["info"]) == {"score": 0.5, "skip": [1, 2], "set": [1, 3], "pair": [1, 2]}
    table = to_table("steps", [row])
    assert table["draft_tokens"].to_pylist() == [[7, 8, 9]]
    assert table["num_draft_tokens"].to_pylist() == [None]


def test_choice_values_are_json():
    assert json.loads(choice(score=0.9)["values"]) == {"skip": [1, 2], "score": 0.9}
    assert choice_row({"sample_id": "s"}, ChoiceRecord(0, 1, "k", {}))["kind"] == "k"


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (sample(spede=1.0), "unknown columns"),
        ({k: v for k, v in sample().items() if k != "used"}, "used"),
        (sample(arm="other"), "arm 'other'"),
        (sample(finish_reason="eos"), "finish_reason 'eos'"),
        (sample(num_tokens="ten"), "does not fit"),
        (failed(decode_s=1.0), "decode_s"),
        (failed(reason="skipped", num_tokens=0), "num_tokens"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(row, text):
    with pytest.raises(DataError, match=text):
        to_table("samples", [row])


def test_failed_and_step_rows_fit():
    assert to_table("samples", [failed()]).num_rows == 1
    assert to_table("steps", [step()]).num_rows == 1


def test_empty_frame_has_the_columns():
    frame = empty_frame("samples")
    assert isinstance(frame, pd.DataFrame)
    assert frame.empty
    assert list(frame.columns) == TABLES["samples"].names
