"""What shares wording with a benchmark is found, the wording of a task's own instruction is not held against it."""

from __future__ import annotations

from specbench.tasks import build_task
from specbench.training.overlap import Benchmarks, ngrams
from specbench.training.prompts import Prompt, PromptFilter, benchmark_filter, given_prompts

LONG = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"


def test_thirteen_words_in_a_row_are_an_overlap_and_twelve_are_not():
    forbidden = Benchmarks.of([[LONG]])
    words = LONG.split()
    assert forbidden.overlap("Well: " + ", ".join(words[1:]).upper() + "!")
    assert not forbidden.overlap(" ".join([*words[:12], "x", *words[12:]]))


def test_a_short_text_is_found_only_whole():
    forbidden = Benchmarks.of([["Who wrote Hamlet?"]])
    assert forbidden.overlap("who wrote hamlet")
    assert not forbidden.overlap("who wrote hamlet and when")
    assert ngrams("?!") == set()


def test_an_instruction_that_many_prompts_share_is_not_content():
    contents = [" ".join(f"{letter}{i}" for letter in "abcdefghijklmn") for i in range(20)]
    forbidden = Benchmarks.of([[f"{content}\n\n{LONG}" for content in contents]])
    assert forbidden.instructions == {LONG}
    assert not forbidden.overlap(f"another question that ends alike b7\n\n{LONG}")
    assert forbidden.overlap(f"{contents[7]}\n\n{LONG}")
    assert Benchmarks.of([[f"{content}\n\n{LONG}" for content in contents[:2]]]).overlap(LONG)  # no instruction yet


def test_the_filter_counts_what_it_saw_and_removed():
    kept = PromptFilter(Benchmarks.of([[LONG]]))
    prompts = [Prompt("user", LONG), Prompt("user", "something else"), Prompt("gsm8k", f"{LONG} again")]
    assert kept.keep(prompts) == [prompts[1]]
    assert (dict(kept.seen), dict(kept.removed)) == ({"user": 2, "gsm8k": 1}, {"user": 1, "gsm8k": 1})


def test_the_benchmarks_of_this_project_are_forbidden(shared_data):
    """A test question is removed, a train question that is asked with the same instruction is not."""
    folder = shared_data / "benchmarks"
    kept = benchmark_filter(folder)
    tests = build_task("gsm8k", source="local", data_dir=folder).samples()[:50]
    human_eval = build_task("humaneval", source="embedded").samples()[:20]
    assert kept.keep([Prompt("test", sample.turns[0]) for sample in (*tests, *human_eval)]) == []
    train = given_prompts({"gsm8k": 1, "mbpp": 1}, data_dir=folder, instructions=None)
    assert len(train) == 7473 + 374
    assert len(kept.keep(train)) > 0.95 * len(train)
