"""Stored skip sets belong to one model."""

from __future__ import annotations

from pathlib import Path

import pytest

from specbench.methods.skip_sets import given_set, store_set
from specbench.types import ConfigError


def test_a_stored_set_comes_back(tmp_path: Path) -> None:
    path = store_set(tmp_path / "sets" / "one.json", {7, 3}, model="abc", card={"task": "gsm8k"})
    assert given_set(str(path), num_sublayers=12, model="abc") == {3, 7}


def test_a_list_is_a_set() -> None:
    assert given_set([5, 2, 2], num_sublayers=12, model=None) == {2, 5}


@pytest.mark.parametrize(("value", "said"), [([12], "0..11"), ([-1], "0..11"), ("nowhere.json", "no such file")])
def test_what_is_no_set_is_refused(value: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        given_set(value, num_sublayers=12, model="abc")  # type: ignore[arg-type]


def test_a_set_of_another_model_is_refused(tmp_path: Path) -> None:
    path = store_set(tmp_path / "one.json", {3}, model="abc", card={})
    with pytest.raises(ConfigError, match="made for model abc, but this one is xyz"):
        given_set(str(path), num_sublayers=12, model="xyz")
    path.write_text('{"sublayers": [3]}')
    with pytest.raises(ConfigError, match="must hold `model`"):
        given_set(str(path), num_sublayers=12, model="abc")
