"""What a model is shown: the history of a second turn, cut prompts, and prompts that are too long."""

from __future__ import annotations

import shutil

import pytest

from specbench.models.tiny import prepare_tiny
from tests.runner.runs import edited_json, local_questions, with_method


def second_turns(done, arm):
    rows = done.rows(arm)
    return list(rows[rows["turn"] == 1]["prompt_sha256"])


def test_both_arms_see_ars_first_answer(measure):
    done = measure("task=mt_bench", change=with_method("WrongToken"))
    assert second_turns(done, "method") == second_turns(done, "baseline")
    assert done.rows("method")["exact_match"].notna().all()
    first = done.rows("method").iloc[0]["text"], done.rows("baseline").iloc[0]["text"]
    assert first[0] != first[1]


def test_own_history_shows_each_arm_its_own_answer_and_compares_only_equal_prompts(measure):
    done = measure("task=mt_bench", "task.history=own", change=with_method("WrongToken"))
    pairs = zip(second_turns(done, "method"), second_turns(done, "baseline"), strict=True)
    assert all(own != baseline for own, baseline in pairs)
    compared = done.rows("method").set_index(["sample_id", "turn"])["exact_match"].notna()
    assert [bool(compared[key]) for key in compared.index] == [turn == 0 for _, turn in compared.index]


def test_own_history_of_an_exact_method_is_the_same_history(measure):
    done = measure("task=mt_bench", "task.history=own", "method=sps")
    assert second_turns(done, "method") == second_turns(done, "baseline")
    assert done.summary["exact_match_rate"] == 1.0


# ---- prompts beyond the context

PAIR = ("method=sps", "sampling.max_new_tokens=8")


@pytest.fixture
def short_context(tmp_path, cache):
    """Words for a tiny pair that reads 320 tokens, on one question that fits and one that does not."""
    words = local_questions(tmp_path, ["Ann has 3 pears.", "Bob has 3 pears. " * 20])
    for role, source in zip(("target", "draft"), prepare_tiny(cache), strict=True):
        folder = tmp_path / "short" / role
        shutil.copytree(source, folder)
        edited_json(folder / "config.json", max_position_embeddings=320)
        words.append(f"model.{role}={folder}")
    return [*words, *PAIR]


def test_a_prompt_beyond_the_context_is_skipped_with_the_reason_and_the_rest_counts(measure, short_context):
    done = measure(*short_context)
    assert (done.error, done.status["status"]) == (None, "finished")
    skipped = done.samples[done.samples["finish_reason"] == "skipped"]
    assert set(skipped["sample_id"]) == {"gsm8k/1"}
    assert skipped["error"].str.contains(r"exceed the model's context of 320; task\.truncate=true").all()
    assert skipped["num_tokens"].isna().all()
    assert [done.summary[f"num_{name}"] for name in ("samples", "measured", "skipped", "failed")] == [2, 1, 1, 0]


def test_a_run_that_skipped_everything_has_measured_nothing_and_fails(measure, tmp_path, short_context):
    local_questions(tmp_path, ["Bob has 3 pears. " * 20])
    done = measure(*short_context)
    assert done.error.startswith(
        "all 1 samples were skipped, so nothing was measured; their rows say why: the prompt of"
    )
    assert done.status["status"] == "failed"


def test_truncation_keeps_both_ends_and_is_recorded(measure, short_context):
    done = measure(*short_context, "task.truncate=true")
    assert done.error is None
    assert list(done.rows()["prompt_truncated"]) == [False, True]
    assert done.rows().iloc[1]["prompt_tokens"] == 320 - 8
    assert done.rows().iloc[1]["num_tokens"] == 8
    assert done.summary["exact_match_rate"] == 1.0
