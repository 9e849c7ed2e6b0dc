"""Stored rows become Spec-Bench conversations."""

import pytest

from specbench.results.specbench_export import category, conversations, question_id
from specbench.results.specbench_files import export_answers, read_answers


def key(sample_id: str, turn: int = 0, arm: str = "method", attempt: int = 0) -> dict:
    return {"sample_id": sample_id, "turn": turn, "arm": arm, "attempt": attempt, "repeat": 0}


def sample(where: dict, num_tokens: int, **changes) -> dict:
    row = where | {
        "used": True,
        "category": "",
        "finish_reason": "stop",
        "error": None,
        "text": " an answer ",
        "tokens": list(range(num_tokens)),
        "num_tokens": num_tokens,
        "num_draft_tokens": 4,
        "prefill_s": 0.5,
        "decode_s": 1.5,
    }
    return row | changes


def steps(where: dict, *emitted: int) -> list[dict]:
    return [where | {"step": number, "num_emitted": count} for number, count in enumerate(emitted)]


def test_turns_steps_and_times_come_together():
    first, second = key("81", 0), key("81", 1)
    rows = [sample(second, 3, category="writing"), sample(first, 5, category="writing")]
    (made,) = conversations(rows, steps(second, 3) + steps(first, 4, 1), task="mt_bench", model_id="m")
    assert (made.question_id, made.category, made.model_id) == (81, "writing", "m")
    assert made.turns == ("an answer", "an answer")
    assert made.decoding_steps == (2, 1)
    assert made.new_tokens == (5, 3)
    assert made.wall_time == (2.0, 2.0)
    assert made.accept_lengths == (4, 1, 3)
    assert made.num_draft_tokens == 8


def test_only_the_used_attempt_of_the_arm_counts():
    dropped, used, other = key("gsm8k/7"), key("gsm8k/7", attempt=1), key("gsm8k/7", arm="baseline")
    rows = [sample(dropped, 1, used=False), sample(used, 2), sample(other, 3)]
    taken = steps(dropped, 1) + steps(used, 2) + steps(other, 1, 1, 1)
    (method,) = conversations(rows, taken, task="gsm8k", model_id="m")
    (baseline,) = conversations(rows, taken, task="gsm8k", model_id="m", arm="baseline")
    assert method.accept_lengths == (2,)
    assert baseline.accept_lengths == (1, 1, 1)


def test_a_failed_turn_fails_the_conversation(tmp_path):
    good, bad = key("gsm8k/1"), key("gsm8k/2")
    nothing = {"num_tokens": None, "prefill_s": None, "decode_s": None}
    broken = sample(bad, 0) | {"finish_reason": "error", "error": "NaN logits"} | nothing
    made = conversations([sample(good, 2), broken], steps(good, 2), task="gsm8k", model_id="m")
    assert [one.error for one in made] == [None, "NaN logits"]
    assert export_answers(made, tmp_path / "m.jsonl") == 1
    assert read_answers(tmp_path / "m.jsonl")[0].ext["specbench"]["sample_id"] == "gsm8k/1"


@pytest.mark.parametrize(
    ("task", "label", "expected"),
    [
        ("gsm8k", "", "math_reasoning"),
        ("gsm8k_mini", "", "math_reasoning"),
        ("cnn_dm", "", "summarization"),
        ("mt_bench", "roleplay", "roleplay"),
        ("spec_bench", "rag", "rag"),
        ("humaneval", "", "humaneval"),
    ],
)
def test_categories(task, label, expected):
    assert category(task, label) == expected


def test_ids_are_numbers_and_equal_in_every_file():
    assert question_id("gsm8k/12") == 12
    assert question_id("cnn_dm/ab9f") == question_id("cnn_dm/ab9f") != question_id("cnn_dm/ab9e")
