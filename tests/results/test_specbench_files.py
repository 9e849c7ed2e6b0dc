"""Spec-Bench files: what is written scores as the official formulas say, and nothing that would falsify a mean is."""

import json
from dataclasses import replace

import pytest

from specbench.results.specbench_files import (
    Conversation,
    export_answers,
    export_swift,
    failed_path,
    read_answers,
    read_swift,
    score,
    score_runs,
)
from specbench.types import ConfigError, DataError


def count_words(text: str) -> int:
    """A tokenizer with a start token: one more than the words."""
    return len(text.split()) + 1


def conversation(question_id: int = 1, category: str = "qa", **changes) -> Conversation:
    base = Conversation(
        question_id,
        category,
        "m",
        turns=("one two three",),
        decoding_steps=(2,),
        new_tokens=(4,),
        wall_time=(2.0,),
        accept_lengths=(3, 1),
    )
    return replace(base, **changes)


TWO_TURNS = {
    "turns": ("one two", "a b c d"),
    "decoding_steps": (1, 2),
    "new_tokens": (3, 5),
    "wall_time": (1.0, 3.0),
    "accept_lengths": (3, 4, 1),
}


def test_what_was_written_is_read_again(tmp_path):
    answers = [conversation(9, ext={"specbench": {"seed": 3}}), conversation(2, "writing", **TWO_TURNS)]
    assert export_answers(answers, tmp_path / "sub" / "m.jsonl") == 2
    assert read_answers(tmp_path / "sub" / "m.jsonl") == [answers[1], answers[0]]


def test_the_official_keys_are_all_there(tmp_path):
    export_answers([conversation()], tmp_path / "m.jsonl")
    row = json.loads((tmp_path / "m.jsonl").read_text())
    assert set(row) == {"question_id", "category", "answer_id", "model_id", "tstamp", "choices"}
    assert row["choices"] == [
        {
            "index": 0,
            "turns": ["one two three"],
            "decoding_steps": [2],
            "new_tokens": [4],
            "wall_time": [2.0],
            "accept_lengths": [3, 1],
        }
    ]


def test_a_line_separator_inside_a_text_is_no_line_end(tmp_path):
    answer = conversation(turns=("one\u2028two\x85three",))
    export_answers([answer], tmp_path / "m.jsonl")
    assert read_answers(tmp_path / "m.jsonl") == [answer]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"turns": ("a", "b")}, "one entry a turn"),
        ({"accept_lengths": (4,)}, "one accept length a step"),
        ({"accept_lengths": (3, 2)}, "add up to the new tokens"),
        ({"wall_time": (0.0,)}, "time above zero"),
        ({"wall_time": (float("nan"),)}, "time above zero"),
        ({"new_tokens": (0,), "accept_lengths": (), "decoding_steps": (0,)}, "at least one token"),
    ],
)
def test_what_would_break_the_scorer_is_not_written(tmp_path, changes, named):
    path = tmp_path / "m.jsonl"
    with pytest.raises(DataError, match=f"question 7 .*{named}"):
        export_answers([conversation(), conversation(7, **changes)], path)
    assert not path.exists()


def test_an_id_given_twice_is_refused(tmp_path):
    with pytest.raises(DataError, match="question_id \\[1\\]"):
        export_answers([conversation(), conversation()], tmp_path / "m.jsonl")


def test_failed_questions_go_to_a_side_file(tmp_path):
    path = tmp_path / "m.jsonl"
    failed = Conversation(5, "qa", "m", error="prompt too long")
    assert export_answers([conversation(), failed], path) == 1
    assert [answer.question_id for answer in read_answers(path)] == [1]
    side = json.loads(failed_path(path).read_text())
    assert side == {"question_id": 5, "category": "qa", "error": "prompt too long"}
    export_answers([conversation()], path)
    assert not failed_path(path).exists()


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('{"question_id": 2, "categ', "line 2: not JSON"),
        ("[1]", "line 2: expected an object"),
        ('{"question_id": 2, "category": "qa", "choices": []}', "line 2: `choices`"),
        ('{"question_id": 2, "category": "qa", "choices": [{"turns": ["a"]}]}', "line 2: `choices.0..decoding_steps`"),
        ('{"question_id": "x", "category": "qa", "choices": [{}]}', "line 2: `question_id`"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, named):
    path = tmp_path / "m.jsonl"
    export_answers([conversation()], path)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(DataError, match=named):
        read_answers(path)


def test_a_missing_file_is_a_data_error(tmp_path):
    with pytest.raises(DataError, match=r"nothing\.jsonl"):
        read_answers(tmp_path / "nothing.jsonl")


@pytest.fixture
def files(tmp_path):
    """Method and baseline: one qa question and one mt_bench question each, the numbers simple enough for a head."""
    method, baseline = tmp_path / "method.jsonl", tmp_path / "baseline.jsonl"
    export_answers([conversation(), conversation(2, "writing", **TWO_TURNS)], method)
    slow = {"decoding_steps": (4,), "wall_time": (4.0,), "accept_lengths": (1, 1, 1, 1)}
    slow_two = {"decoding_steps": (3, 5), "wall_time": (4.0, 8.0), "accept_lengths": (1,) * 8}
    export_answers([conversation(**slow), conversation(2, "writing", **TWO_TURNS | slow_two)], baseline)
    return method, baseline


def test_a_speedup_is_the_ratio_of_mean_rates_with_the_baseline_counted_again(files):
    figures = score(*files, count_words)
    assert figures["tokens_per_second"] == pytest.approx((4 / 2 + 8 / 4) / 2)
    assert figures["tokens_per_second_baseline"] == pytest.approx((3 / 4 + 6 / 12) / 2)
    assert figures["speedup"] == pytest.approx(2.0 / 0.625)
    assert figures["mean_accepted_tokens"] == pytest.approx((3 + 1 + 3 + 4 + 1) / 5)
    assert figures["num_steps"] == 5


def test_the_unbiased_count_uses_recorded_tokens_on_both_sides(files):
    figures = score(*files, count_words, baseline_count="recorded")
    assert figures["speedup"] == pytest.approx(2.0 / ((4 / 4 + 8 / 12) / 2))
    assert score(files[1], files[1], count_words, baseline_count="recorded")["speedup"] == 1.0


def test_mt_bench_is_its_eight_categories(files):
    figures = score(*files, count_words, "mt_bench")
    assert figures["tokens_per_second"] == pytest.approx(2.0)
    assert figures["num_steps"] == 3


def test_an_empty_subset_has_no_figures(files):
    figures = score(*files, count_words, "rag")
    assert figures.pop("num_steps") == 0
    assert set(figures.values()) == {None}


def test_an_unknown_subset_lists_the_legal_ones(files):
    with pytest.raises(ConfigError, match=r"gsm8k.*math_reasoning.*overall"):
        score(*files, count_words, "gsm8k")
    with pytest.raises(ConfigError, match="baseline_count"):
        score(*files, count_words, baseline_count="words")


def test_a_foreign_file_without_time_names_its_question(files, tmp_path):
    path = tmp_path / "foreign.jsonl"
    path.write_text(files[0].read_text().replace('"wall_time": [2.0]', '"wall_time": [0.0]'))
    with pytest.raises(DataError, match="question 1 has no time"):
        score(path, files[1], count_words)


def test_runs_give_mean_and_sample_deviation_with_steps_pooled(files):
    method, baseline = files
    figures = score_runs([(method, baseline), (baseline, baseline)], count_words)
    assert figures["mean_accepted_tokens"] == pytest.approx((12 + 12) / (5 + 12))
    first, second = 2.0, (4 / 4 + 8 / 12) / 2
    assert figures["tokens_per_second"] == pytest.approx(((first + second) / 2, abs(first - second) / 2**0.5))


def test_one_run_has_no_deviation(files):
    assert score_runs([files], count_words)["speedup"] == (pytest.approx(3.2), None)


def test_swift_files_have_no_ids_and_end_with_a_summary(tmp_path):
    path = tmp_path / "swift.jsonl"
    export_swift([conversation(3, num_draft_tokens=8), conversation(4, num_draft_tokens=2)], path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [set(row) for row in rows[:2]] == [{"model_id", "choices", "tstamp"}] * 2
    assert rows[0]["choices"][0]["turns"] == "one two three"
    assert rows[0]["choices"][0]["acceptance_rate"] == pytest.approx(2 / 8)
    assert rows[2] == {"Mean accepted tokens": 2.0, "Token acceptance rate": pytest.approx(4 / 10)}


def test_swift_files_are_read_without_their_summary(tmp_path):
    path = tmp_path / "swift.jsonl"
    export_swift([conversation(3), conversation(4)], path)
    assert read_swift(path) == [conversation(0, ""), conversation(1, "")]


def test_swift_has_no_place_for_two_turns(tmp_path):
    with pytest.raises(DataError, match="one turn"):
        export_swift([conversation(2, "writing", **TWO_TURNS)], tmp_path / "swift.jsonl")
