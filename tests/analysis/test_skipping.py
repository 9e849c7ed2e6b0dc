"""The last skip set, the searches' share of the time, and the steady state, on rows made by hand."""

from __future__ import annotations

import pytest

from specbench.analysis.metrics import summarise
from specbench.analysis.report import closing_table
from specbench.results.schema import choice_row
from specbench.results.store import RunStore
from specbench.results.summary import load_runs
from specbench.types import ChoiceRecord
from tests.analysis.frames import frame
from tests.results.rows import KEY_DEFAULTS, sample, step

STEADY = ("tokens_per_second", "walltime_speedup", "num_tokens", "num_conversations")


def chosen(sample_id: str, at: int, sublayers: list[int] | None = None, **values: object) -> dict:
    attention = None if sublayers is None else sum(index % 2 == 0 for index in sublayers)
    mlp = None if sublayers is None or attention is None else len(sublayers) - attention
    counts = {"sublayers": sublayers, "num_attention_skipped": attention, "num_mlp_skipped": mlp}
    return choice_row({"sample_id": sample_id, **KEY_DEFAULTS}, ChoiceRecord(at, 9, "skip_set", counts | values))


def answer(name: str, started: float, *, adapt: float = 0.0, seconds: float = 0.1, context: int = 10) -> tuple:
    """Rows of both arms: the method makes 4 steps of 2 tokens in `seconds` each, AR 8 steps of 0.1 s."""
    own = [
        step(name, i, context_length=context + 2 * i, num_emitted=2, draft_s=0.0, verify_s=seconds, adapt_s=adapt)
        for i in range(4)
    ]
    plain = {"num_tree_tokens": 0, "num_draft_tokens": 0, "num_accepted": 0, "num_accepted_spine": 0}
    key = {"arm": "baseline"}
    ar = [
        step(name, i, key=key, context_length=context + i, num_emitted=1, draft_s=0.0, verify_s=0.1, **plain)
        for i in range(8)
    ]
    spent = {"decode_s": 4 * (seconds + adapt), "adapt_s": 4 * adapt, "num_tokens": 8, "started_at": started}
    both = [sample(name, **spent), sample(name, arm="baseline", decode_s=0.8, num_tokens=8, started_at=started)]
    return both, [*own, *ar]


def summary(answers: list[tuple], choices: list[dict], *, together: bool = False) -> dict:
    rows, steps = ([row for answer in answers for row in answer[i]] for i in (0, 1))
    unit_of = (lambda _: "run") if together else None
    return summarise(frame(rows), frame(steps, "steps"), frame(choices, "choices"), unit_of=unit_of)


def steady(result: dict) -> list:
    return [result[f"steady_{name}"] for name in STEADY]


def test_the_set_of_the_last_answer_counts_and_not_of_the_last_row():
    choices = [chosen("b", 2, [4, 5, 7]), chosen("a", 1, [2]), chosen("a", 3, None)]
    result = summary([answer("b", 2.0), answer("a", 1.0)], choices)
    assert (result["skip_set"], result["num_attention_skipped"], result["num_mlp_skipped"]) == ([4, 5, 7], 1, 2)
    assert result["num_choices"] == 3


def test_plain_steps_at_the_end_are_no_set():
    result = summary([answer("a", 1.0)], [chosen("a", 1, [2]), chosen("a", 3, None)])
    assert [result[name] for name in ("skip_set", "num_attention_skipped", "num_mlp_skipped")] == [None] * 3


def test_the_share_of_searches_is_that_of_adapt():
    result = summary([answer("a", 1.0, seconds=0.1, adapt=0.3), answer("b", 2.0, seconds=0.1)], [chosen("a", 1, [2])])
    assert result["search_share"] == pytest.approx(1.2 / 2.0)


def test_steps_after_the_last_search_are_compared_with_ars_at_the_same_places():
    rows, steps = answer("a", 1.0)
    slow = [step | {"verify_s": 9.0} if step["arm"] == "method" and step["step"] < 2 else step for step in steps]
    # AR's first four tokens lie before the steady steps: what they took must not count.
    slow = [step | {"verify_s": 7.0} if step["arm"] == "baseline" and step["step"] < 4 else step for step in slow]
    result = summary([(rows, slow)], [chosen("a", 1, [2], reason="chosen")])
    assert steady(result) == [pytest.approx(20.0), pytest.approx(2.0), 4, 1]
    assert result["steady_ci_low"] is None


def test_where_samples_learn_together_all_after_the_last_search_are_steady():
    answers = [answer("a", 1.0, seconds=5.0), *(answer(f"s{i}", 2.0 + i, seconds=0.05) for i in range(8))]
    choices = [chosen("a", 0, [2], active=True), chosen("a", 3, [2], active=False)]
    result = summary(answers, choices, together=True)
    assert steady(result) == [pytest.approx(40.0), pytest.approx(4.0), 64, 8]
    assert result["steady_ci_low"] == pytest.approx(4.0) == result["steady_ci_high"]
    assert result["search_ended"] is True
    alone = summary(answers, choices)
    assert steady(alone) == [None] * 4  # the others never searched, and nothing follows step 3


def test_a_search_that_has_not_ended_has_no_steady_state():
    result = summary([answer("a", 1.0)], [chosen("a", 0, [2], active=True)])
    assert result["search_ended"] is False
    assert steady(result) == [None] * 4


def test_what_no_search_made_is_no_search():
    result = summary([answer("a", 1.0)], [chosen("a", 0, [2, 3], reason="initial")])
    assert (result["num_choices"], result["search_ended"], result["skip_set"]) == (0, None, [2, 3])
    assert steady(result) == [None] * 4
    result = summary([answer("a", 1.0)], [chosen("a", 0, [2, 3], reason="given")])
    assert (result["num_choices"], result["search_share"], result["skip_set"]) == (None, None, [2, 3])


def test_how_often_it_drafted():
    rows, steps = answer("a", 1.0)
    idle = [step | {"num_tree_tokens": 0} if step["step"] == 0 else step for step in steps]
    assert summary([(rows, idle)], [])["drafting_step_share"] == pytest.approx(3 / 4)


def stored(folder, answers: list[tuple], choices: list[dict] | None) -> None:
    with RunStore(folder) as store:
        store.write_config("model: tiny\nmethod: {name: swift, controller: none}\ntask: gsm8k\n")
        for rows, steps in answers:
            name = rows[0]["sample_id"]
            store.append(name, rows, steps, [row for row in choices or () if row["sample_id"] == name])
        frames = store.frames()
        found = summarise(frames.samples, frames.steps, None if choices is None else frames.choices)
        store.finalize(found, status="finished")


def test_the_closing_table_shows_what_was_skipped_only_where_a_run_skips(tmp_path):
    stored(tmp_path / "plain", [answer("a", 1.0)], None)
    assert "search time" not in closing_table(load_runs(tmp_path)).columns
    stored(tmp_path / "swift", [answer("a", 1.0, adapt=0.1)], [chosen("a", 1, [2, 4, 5], active=False)])
    stored(tmp_path / "busy", [answer("a", 1.0)], [chosen("a", 1, [2], active=True)])
    table = closing_table(load_runs(tmp_path))
    assert table.columns[-3:] == ["skipped attn/MLP", "search time", "steady state"]
    cells = {note.partition(":")[0]: row[-3:] for note, row in zip(table.notes, table.rows, strict=True)}
    assert cells == {
        "plain": ["-", "-", "-"],
        "swift": ["2/1", "50.0%", "1.00x (10.0 tok/s)"],
        "busy": ["1/0", "0.0%", "-"],
    }
    assert "its search had not ended" in next(note for note in table.notes if note.startswith("busy"))
