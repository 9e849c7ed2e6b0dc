"""The course of a run by hand: speed so far, sets over steps, predictions beside what came."""

from __future__ import annotations

import pandas as pd
import pytest

from specbench.analysis.progress import cumulative_speedup, pooled_prediction, predictions, search_end, skip_timeline
from specbench.analysis.speed import speedup_metrics
from tests.analysis.frames import frame, pair_rows
from tests.results.rows import choice, sample, step


def test_speed_so_far_follows_the_order_of_decoding() -> None:
    rows = [
        *pair_rows("b", (10, 1.0), (10, 1.0), started_at=1.0),
        *pair_rows("a", (10, 1.0), (10, 3.0), started_at=2.0),
    ]
    table = cumulative_speedup(frame(rows))
    assert table["sample_id"].tolist() == ["b", "a"]
    assert table["speedup"].tolist() == [1.0, 2.0]
    assert table["speedup"].iloc[-1] == speedup_metrics(frame(rows))["walltime_speedup"]


def test_rows_without_a_pair_give_no_curve() -> None:
    assert cumulative_speedup(frame([sample("a")])).empty


def answers(*names: str) -> pd.DataFrame:
    return frame([sample(name, started_at=float(place)) for place, name in enumerate(names)])


def choices(*rows: tuple[str, int, dict]) -> pd.DataFrame:
    return frame([{**choice(name, **values), "step": at} for name, at, values in rows], "choices")


def test_where_a_search_ended() -> None:
    made = [("x", 3, {"reason": "better", "active": True}), ("y", 2, {"reason": "limit", "active": False})]
    samples = answers("x", "y", "z")
    assert search_end(samples, choices(*made)) == 2
    assert search_end(samples, choices(made[0])) is None
    assert search_end(samples, choices(("x", 0, {"reason": "initial", "active": False}))) is None
    assert search_end(samples, choices(("x", 3, {"reason": "search"}))) is None  # such searches never end


def steps_of(*names: str, count: int = 3) -> pd.DataFrame:
    return frame([step(name, index) for name in names for index in range(count)], "steps")


def test_sets_over_the_steps_of_a_run() -> None:
    made = choices(
        ("x", 0, {"reason": "initial", "sublayers": [2]}),
        ("x", 1, {"reason": "better", "sublayers": [4, 5]}),
        ("y", 0, {"reason": "carried_over", "sublayers": [4, 5]}),
        ("y", 1, {"reason": "guard", "sublayers": None}),
    )
    timeline = skip_timeline(answers("x", "y"), steps_of("y", "x"), made)
    assert timeline.num_steps == 6
    assert timeline.answers == [0, 3]
    assert timeline.sets[["first_step", "last_step"]].to_numpy().tolist() == [[0, 2], [2, 3], [3, 5], [5, 6]]
    assert timeline.sets["sublayers"].tolist() == [[2], [4, 5], [4, 5], None]


def test_steps_before_the_first_choice_are_plain_where_nothing_was_drafted() -> None:
    rows = [step("x", index, num_tree_tokens=4 * (index > 1)) for index in range(4)]
    made = choices(("x", 1, {"reason": "search", "sublayers": [2]}))
    timeline = skip_timeline(answers("x"), frame(rows, "steps"), made)
    assert timeline.sets["sublayers"].tolist() == [None, [2]]
    assert timeline.sets["first_step"].tolist() == [0, 2]


def test_an_answer_that_drafts_without_a_choice_of_its_own_keeps_the_set() -> None:
    made = choices(("x", 0, {"reason": "search", "sublayers": [2]}))
    timeline = skip_timeline(answers("x", "y"), steps_of("x", "y"), made)
    assert timeline.sets[["first_step", "last_step"]].to_numpy().tolist() == [[1, 6]]


def test_choices_of_answers_that_do_not_count_give_no_sets() -> None:
    made = choices(("gone", 0, {"reason": "search", "sublayers": [2]}))
    timeline = skip_timeline(answers("x"), steps_of("y"), made)
    assert (len(timeline.sets), timeline.num_steps) == (0, 0)


def test_a_set_that_no_step_used_is_left_out() -> None:
    made = choices(("x", 0, {"reason": "initial", "sublayers": [2]}), ("x", 2, {"reason": "limit", "sublayers": [3]}))
    timeline = skip_timeline(answers("x"), steps_of("x"), made)
    assert timeline.sets["sublayers"].tolist() == [[2]]


AR_RATE = 5.0  # tokens a second


def with_ar(name: str, *, timed: bool = True) -> pd.DataFrame:
    return frame(pair_rows(name, (10, 1.0), (10, 10 / AR_RATE), timed=timed))


def predicted(rate: float, *, plain: float = 10.0) -> dict[str, float]:
    return {"predicted_tokens_per_second": rate, "plain_tokens_per_second": plain}


def test_a_prediction_stands_beside_what_followed_it() -> None:
    made = choices(("x", 0, predicted(12.0)), ("x", 2, predicted(20.0)))
    found = predictions(with_ar("x"), steps_of("x", count=4), made)
    assert found["predicted"].tolist() == [1.2, 2.0]
    assert found["num_tokens"].tolist() == [6, 3]  # steps 1 and 2, then step 3
    assert found["ar_seconds"].tolist() == pytest.approx([1.2, 0.6])
    assert found["measured"].tolist() == pytest.approx([2.0, 2.0])  # 3 tokens in 0.1 + 0.2 seconds, AR 0.6


def test_pooled_speeds_are_all_of_ars_seconds_over_all_seconds() -> None:
    sets = pd.DataFrame(
        {"predicted": [1.0, 2.0], "num_tokens": [10, 20], "seconds": [2.0, 1.0], "ar_seconds": [1.0, 2.0]}
    )
    pooled = {"predicted": 1.5, "measured": 1.0, "num_tokens": 30, "seconds": 3.0, "ar_seconds": 3.0}
    assert pooled_prediction(sets) == pooled


def test_the_time_of_the_next_search_is_not_the_sets() -> None:
    slow = frame([step("x", 0), step("x", 1, adapt_s=5.0)], "steps")
    found = predictions(with_ar("x"), slow, choices(("x", 0, predicted(12.0))))
    assert found["measured"].tolist() == pytest.approx([2.0])


def test_untimed_answers_have_no_speed() -> None:
    assert predictions(with_ar("x", timed=False), steps_of("x"), choices(("x", 0, predicted(12.0)))).empty
