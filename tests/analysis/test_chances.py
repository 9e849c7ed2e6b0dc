"""Chances of drafted tokens against what was accepted, by hand."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from specbench.analysis.chances import auc_by_position, calibration, calibration_error, judged_tokens
from tests.analysis.frames import frame
from tests.results.rows import step


def steps(**values: Any) -> pd.DataFrame:
    return frame([step(num_draft_tokens=4, num_accepted_spine=2, **values)], "steps")


def test_chances_given_all_before_end_with_the_first_rejected_token() -> None:
    found = judged_tokens(steps(info={"conditional_chances": [0.9, 0.8, 0.3, 0.7]}))
    assert found["position"].tolist() == [1, 2, 3]
    assert found["accepted"].tolist() == [True, True, False]


def test_chances_of_acceptance_count_for_every_token() -> None:
    found = judged_tokens(steps(info={"chances": [0.9, 0.8, 0.3, 0.7]}))
    assert found["accepted"].tolist() == [True, True, False, False]
    assert found["chance"].tolist() == [0.9, 0.8, 0.3, 0.7]


def test_tokens_that_were_never_submitted_do_not_count() -> None:
    assert len(judged_tokens(steps(info={"chances": [0.5] * 6}))) == 4


def test_scores_of_token_rules_stand_in_where_they_are_chances() -> None:
    by_token = {"block_lengths": (1,) * 4, "block_scores": (0.9, 0.6, 0.2)}
    assert judged_tokens(steps(**by_token))["chance"].tolist() == [0.9, 0.6, 0.2]
    assert judged_tokens(steps(**{**by_token, "block_scores": (3.0, 2.0, 1.0)})).empty
    assert judged_tokens(steps(block_lengths=(2, 2), block_scores=(0.9, 0.6))).empty


def test_steps_without_a_draft_say_nothing() -> None:
    nothing = frame([step(num_draft_tokens=0, num_accepted_spine=0, info={"chances": []})], "steps")
    assert judged_tokens(nothing).empty
    assert judged_tokens(frame([step(num_draft_tokens=None)], "steps")).empty


def judged(*tokens: tuple[int, float, bool]) -> pd.DataFrame:
    return pd.DataFrame(tokens, columns=["position", "chance", "accepted"])


def test_bins_hold_mean_chance_and_share() -> None:
    tokens = judged((1, 0.11, True), (1, 0.13, False), (2, 0.95, True), (2, 1.0, True))
    table = calibration(tokens)
    assert table["num_tokens"].tolist() == [2, 2]
    assert table["mean_chance"].tolist() == pytest.approx([0.12, 0.975])
    assert table["accepted_share"].tolist() == [0.5, 1.0]
    assert calibration_error(tokens) == pytest.approx((2 * 0.38 + 2 * 0.025) / 4)


def test_auc_needs_both_kinds_at_a_place() -> None:
    table = auc_by_position(judged((1, 0.9, True), (1, 0.2, False), (2, 0.5, True), (3, 0.4, True), (3, 0.6, False)))
    assert table["auc"].tolist()[::2] == [1.0, 0.0]
    assert pd.isna(table["auc"][1])
    assert table["num_tokens"].tolist() == [2, 1, 2]
