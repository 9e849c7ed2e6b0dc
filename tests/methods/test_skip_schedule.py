"""When KnapSpec collects and searches, what it keeps of a pass, how it judges speed, and its time budget."""

from __future__ import annotations

import pytest
import torch

from specbench.methods.skip_schedule import Budget, Pace, Rows, StepSchedule, TokenSchedule


def test_the_published_schedule_looks_at_five_steps_and_searches_after_the_last() -> None:
    schedule = StepSchedule(64, 5)
    assert [step for step in range(140) if schedule.collects(step, 0)] == [
        2,
        3,
        4,
        5,
        6,
        *range(66, 71),
        *range(130, 135),
    ]
    assert [step for step in range(140) if schedule.due(step, 0, 5)] == [6, 70, 134]


def searches(schedule: TokenSchedule, plain: list[bool], tokens: int = 600) -> list[int]:
    """After how many tokens a search runs, one token a step, with what each decides (the last one again and again)."""
    schedule.begin()
    found, rows = [], 0
    for emitted in range(tokens):
        rows = rows + 1 if schedule.collects(emitted, emitted) else 0
        if schedule.due(emitted, emitted + 1, rows):
            assert rows >= schedule.window
            found.append(emitted + 1)
            schedule.decided(emitted + 1, plain=plain[min(len(found), len(plain)) - 1])
            rows = 0
    return found


def test_searches_are_an_interval_apart_while_sets_win() -> None:
    assert searches(TokenSchedule(32, 64), [False], 300) == [32, 96, 160, 224, 288]


def test_each_win_of_plain_decoding_doubles_the_interval() -> None:
    assert searches(TokenSchedule(32, 64), [True]) == [32, 160, 416]
    assert searches(TokenSchedule(32, 64), [True, True, False]) == [32, 160, 416, 480, 544]
    assert searches(TokenSchedule(32, 64, doubling=False), [True], 200) == [32, 96, 160]


def test_an_interval_shorter_than_the_window_waits_for_rows() -> None:
    assert searches(TokenSchedule(32, 8), [False], 140) == [32, 64, 96, 128]


def test_a_prompt_starts_with_what_was_decided_until_it_is_forgotten() -> None:
    schedule = TokenSchedule(32, 64)
    assert searches(schedule, [True], 40) == [32]
    assert searches(schedule, [True], 200) == [128]
    schedule.reset()
    assert searches(schedule, [True], 40) == [32]


def test_rows_keep_the_last_ones_and_know_where_they_are() -> None:
    rows = Rows(most=5)
    for start, count in ((0, 3), (3, 1), (4, 4), (8, 2)):
        states = torch.arange(start, start + 6.0)[:, None]  # more rows than stay
        rows.add({2: states + 100, 1: states}, count)
    window = rows.window(length=30)  # ten rows were committed as slots 20..29
    assert (window.rows, window.start) == (5, 25)
    assert window.after(1)[:, 0].tolist() == [5, 6, 7, 8, 9]
    assert window.after(2)[:, 0].tolist() == [105, 106, 107, 108, 109]
    rows.clear()
    assert len(rows) == 0


def test_without_a_limit_rows_keep_everything() -> None:
    rows = Rows()
    for count in (2, 3):
        rows.add({1: torch.zeros(4, 2)}, count)
    assert rows.window(9).start == 4


def test_pace_compares_the_last_drafted_tokens_with_plain_steps() -> None:
    pace = Pace(8)
    for seconds in (1.0, 50.0, 1.0):  # one step was disturbed
        pace.add(drafted=False, emitted=1, seconds=seconds)
    for _ in range(3):
        pace.add(drafted=True, emitted=2, seconds=4.0)
    assert pace.gain(9.0) is None  # six tokens so far
    pace.add(drafted=True, emitted=2, seconds=4.0)
    assert pace.gain(9.0) == pytest.approx(8 / 16)
    for _ in range(4):
        pace.add(drafted=True, emitted=4, seconds=2.0)
    assert pace.gain(9.0) == pytest.approx(8 / 4)  # older steps are not looked at
    pace.restart()
    assert pace.gain(9.0) is None


def test_pace_without_plain_steps_takes_what_they_should_cost() -> None:
    pace = Pace(2)
    pace.add(drafted=True, emitted=3, seconds=1.5)
    assert pace.gain(0.75) == pytest.approx(1.5)


def test_searches_stay_below_their_share_of_all_time() -> None:
    budget = Budget(0.1, decoding=9.0)
    assert budget.allows(1.0)
    assert not budget.allows(1.01)
    budget.searching = 0.5
    assert not budget.allows(0.6)
    assert Budget(None).allows(1e9)
