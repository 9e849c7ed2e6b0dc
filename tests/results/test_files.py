from __future__ import annotations

import json

import numpy as np
import pytest

from specbench.results.files import read_json, read_parquet, write_json
from specbench.types import DataError


def refuse(text):
    raise AssertionError(f"{text} is not JSON")


def test_numbers_that_json_does_not_know_become_null(tmp_path):
    values = {
        "a": float("nan"),
        "b": [np.float64("inf"), np.int64(3)],
        "c": {"d": (1, float("-inf"))},
        "e": np.bool_(True),
    }
    write_json(tmp_path / "x.json", values)
    text = (tmp_path / "x.json").read_text()
    assert json.loads(text, parse_constant=refuse) == {"a": None, "b": [None, 3], "c": {"d": [1, None]}, "e": True}


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff\xfe{}"])
def test_a_file_that_holds_no_object_is_named(tmp_path, content):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.json"):
        read_json(tmp_path / "x.json")


@pytest.mark.parametrize("read", [read_json, read_parquet])
def test_a_missing_file_is_named(tmp_path, read):
    with pytest.raises(DataError, match="nothing: missing"):
        read(tmp_path / "nothing")
