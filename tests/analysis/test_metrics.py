from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.analysis.exactness import divergent_turns, first_divergence, repetition_rate
from specbench.analysis.metrics import summarise
from specbench.results.files import read_json, write_json
from specbench.results.schema import empty_frame
from tests.analysis.frames import frame, pair_rows
from tests.results.rows import choice, failed, sample, step

NO_STEPS = empty_frame("steps")


def steps_of(rows):
    return frame(rows, "steps")


def test_acceptance_by_hand():
    rows = [
        step(index=0, num_draft_tokens=0, num_tree_tokens=0, num_accepted=0, num_accepted_spine=0, num_emitted=1),
        step(index=1, num_draft_tokens=4, num_tree_tokens=4, num_accepted=4, num_accepted_spine=4, num_emitted=5),
        step(index=2, num_draft_tokens=2, num_tree_tokens=2, num_accepted=1, num_accepted_spine=1, num_emitted=2),
    ]
    result = summarise(frame([sample()]), steps_of(rows))
    assert result["acceptance_rate"] == pytest.approx(5 / 6)
    assert result["mat"] == pytest.approx(8 / 3)
    assert result["accepted_per_step"] == pytest.approx(5 / 3)
    assert result["drafted_by_position"] == [2, 2, 1, 1]
    assert result["acceptance_by_position"] == [1.0, 0.5, 1.0, 1.0]
    assert result["verify_rows_histogram"] == [[1, 1], [3, 1], [5, 1]]
    assert (result["num_steps"], result["num_draft_tokens"], result["drafted_nothing"]) == (3, 6, False)


def test_trees_count_siblings_in_their_own_rate():
    rows = [step(num_draft_tokens=4, num_tree_tokens=12, num_accepted=3, num_accepted_spine=1, num_emitted=4)]
    result = summarise(frame([sample()]), steps_of(rows))
    assert result["acceptance_rate"] == pytest.approx(1 / 4)
    assert result["tree_acceptance_rate"] == pytest.approx(3 / 4)
    assert result["tree_tokens_per_step"] == pytest.approx(12)


def test_without_a_spine_the_rate_is_null_but_mat_is_not():
    rows = [step(num_draft_tokens=None, num_accepted_spine=0, num_passengers=10)]
    result = summarise(frame([sample()]), steps_of(rows))
    assert result["acceptance_rate"] is None
    assert result["tree_acceptance_rate"] is None
    assert result["acceptance_by_position"] is None
    assert result["mat"] == pytest.approx(3.0)
    assert result["verify_rows_histogram"] == [[15, 1]]


def test_an_empty_draft_makes_no_spine_where_the_others_have_none():
    without = step(index=0, num_draft_tokens=None, num_accepted_spine=0)
    empty = step(index=1, num_draft_tokens=0, num_tree_tokens=0, num_accepted=0, num_accepted_spine=0, num_emitted=1)
    result = summarise(frame([sample()]), steps_of([without, empty]))
    names = ("num_draft_tokens", "draft_tokens_per_step", "acceptance_rate", "tree_acceptance_rate")
    for name in (*names, "acceptance_by_position", "drafted_by_position"):
        assert result[name] is None
    assert (result["num_steps"], result["mat"]) == (2, pytest.approx(2.0))
    drafted = step(index=2, num_draft_tokens=4, num_accepted_spine=2)
    result = summarise(frame([sample()]), steps_of([without, empty, drafted]))
    assert (result["num_draft_tokens"], result["draft_tokens_per_step"]) == (4, 2.0)


def test_generators_without_steps_have_no_mat():
    result = summarise(frame(pair_rows("a", (10, 1.0), (10, 2.0))), NO_STEPS)
    assert (result["mat"], result["acceptance_rate"], result["drafted_nothing"]) == (None, None, None)
    assert result["walltime_speedup"] == pytest.approx(2.0)


def test_ar_steps():
    row = step(num_draft_tokens=0, num_tree_tokens=0, num_accepted=0, num_accepted_spine=0, num_emitted=1)
    result = summarise(frame([sample()]), steps_of([row]))
    assert (result["mat"], result["acceptance_rate"], result["drafted_nothing"]) == (1.0, None, True)


def test_only_steps_of_counted_method_rows_count():
    kept = step("a")
    others = [
        step("a", key={"attempt": 1}, num_accepted_spine=0),
        step("a", key={"arm": "baseline"}, num_accepted_spine=0),
        step("bad", num_accepted_spine=0),
    ]
    samples = frame([sample("a"), sample("a", attempt=1, used=False), sample("bad"), failed("bad", turn=1)])
    result = summarise(samples, steps_of([kept, *others]))
    assert result["acceptance_rate"] == pytest.approx(0.5)
    assert result["num_steps"] == 1


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=10))
def test_chain_invariants(drawn):
    chains = [(k, min(a, k)) for k, a in drawn]
    rows = [
        step(index=i, num_draft_tokens=k, num_tree_tokens=k, num_accepted=a, num_accepted_spine=a, num_emitted=a + 1)
        for i, (k, a) in enumerate(chains)
    ]
    result = summarise(frame([sample()]), steps_of(rows))
    assert result["mat"] == pytest.approx(1 + result["accepted_per_step"])
    assert sum(result["drafted_by_position"]) == sum(k for k, _ in chains)
    by_position = zip(result["acceptance_by_position"], result["drafted_by_position"], strict=True)
    assert sum(rate * n for rate, n in by_position) == pytest.approx(sum(a for _, a in chains))
    assert result["tree_acceptance_rate"] == result["acceptance_rate"]
    if result["acceptance_rate"] is not None:
        assert 0 <= result["acceptance_rate"] <= 1


def test_failed_and_skipped_conversations_are_counted_and_excluded():
    rows = [
        *pair_rows("ok", (10, 1.0), (10, 2.0)),
        *pair_rows("half", (10, 1.0), (10, 50.0)), failed("half", turn=1),
        failed("long", reason="skipped"),
        sample("ar_only", arm="baseline"), failed("ar_only"),
    ]  # fmt: skip
    result = summarise(frame(rows), NO_STEPS)
    counts = {name: result[f"num_{name}"] for name in ("samples", "measured", "failed", "skipped", "turns", "timed")}
    assert counts == {"samples": 4, "measured": 1, "failed": 2, "skipped": 1, "turns": 1, "timed": 1}
    assert result["walltime_speedup"] == pytest.approx(2.0)


def test_a_run_in_which_everything_failed_has_no_number():
    result = summarise(frame([failed("a"), failed("b")]), NO_STEPS)
    assert (result["num_failed"], result["num_measured"]) == (2, 0)
    for name in ("tokens_per_second", "walltime_speedup", "mat", "exact_match_rate", "ttft_s", "cost_ratio"):
        assert result[name] is None


def test_no_rows_at_all():
    assert summarise(empty_frame("samples"), NO_STEPS)["num_samples"] == 0


def test_exactness_by_hand():
    rows = [
        sample("a", exact_match=True, teacher_agreement=1.0, repetition_rate=0.2),
        sample("a", turn=1, exact_match=False, divergence_index=3, divergence_gap=0.1, divergence_class="tie",
               teacher_agreement=0.9, repetition_rate=0.4),
        sample("b", exact_match=False, divergence_index=0, divergence_gap=4.0, divergence_class="bug"),
        sample("c", exact_match=True),
        sample("a", arm="baseline", num_tokens=30),
        sample("a", arm="baseline", turn=1, num_tokens=10),
    ]  # fmt: skip
    samples = frame(rows)
    result = summarise(samples, NO_STEPS)
    assert result["exact_match_rate"] == pytest.approx(1 / 3)
    assert [result[f"num_{name}"] for name in ("compared", "divergent", "ties", "bugs")] == [3, 2, 1, 1]
    assert result["teacher_agreement"] == pytest.approx((30 + 9) / 40)
    assert result["repetition_rate"] == pytest.approx(0.3)
    assert divergent_turns(samples)[["sample_id", "turn", "divergence_class"]].to_numpy().tolist() == [
        ["a", 1, "tie"], ["b", 0, "bug"],
    ]  # fmt: skip


def test_repeats_do_not_count_a_divergence_twice():
    rows = [sample("a", repeat=r, exact_match=False, divergence_class="tie") for r in range(3)]
    result = summarise(frame(rows), NO_STEPS)
    assert (result["num_divergent"], result["num_ties"], result["exact_match_rate"]) == (1, 1, 0.0)


def test_nothing_compared_is_null():
    assert summarise(frame([sample()]), NO_STEPS)["exact_match_rate"] is None


def test_scores_of_both_arms():
    def scored(sample_id, own, ar, exact):
        return [
            sample(sample_id, exact_match=exact, scores=json.dumps({"accuracy": own, "extra": 1.0})),
            sample(sample_id, arm="baseline", scores=json.dumps({"accuracy": ar})),
        ]

    rows = [*scored("a", 1.0, 1.0, True), *scored("b", 0.0, 1.0, False), *scored("c", 0.5, 1.0, True)]
    rows.append(sample("d", exact_match=True, scores="{}"))
    result = summarise(frame(rows), NO_STEPS)
    assert result["scores"] == {"accuracy": pytest.approx(0.5), "extra": 1.0}
    assert result["baseline_scores"] == {"accuracy": 1.0}
    assert result["score_deltas"] == {"accuracy": {"mean": pytest.approx(-0.5), "ci_low": None, "ci_high": None}}
    assert result["num_score_disagreements"] == 1


def test_memory_and_choices():
    rows = frame([sample("a", peak_memory_bytes=5), sample("b", peak_memory_bytes=9), sample("b", arm="baseline")])
    result = summarise(rows, NO_STEPS, frame([choice("a")], "choices"), dtype="float32")
    assert (result["peak_memory_bytes"], result["baseline_peak_memory_bytes"]) == (9, None)
    assert (result["num_choices"], result["dtype"]) == (1, "float32")
    assert summarise(rows, NO_STEPS, empty_frame("choices"))["num_choices"] == 0
    assert summarise(rows, NO_STEPS)["num_choices"] is None


def test_the_summary_is_plain_json(tmp_path):
    rows = [row for i in range(9) for row in pair_rows(f"s{i}", (10 + i, 1.0), (10, 2.0 + i))]
    result = summarise(frame(rows), steps_of([step(f"s{i}") for i in range(9)]), empty_frame("choices"))
    assert result["ci_low"] < result["walltime_speedup"] < result["ci_high"]
    write_json(tmp_path / "summary.json", result)
    assert read_json(tmp_path / "summary.json") == json.loads(json.dumps(result))


@pytest.mark.parametrize(
    ("tokens", "reference", "expected"),
    [([1, 2], [1, 2], None), ([1, 3], [1, 2], 1), ([1], [1, 2], 1), ([1, 2, 3], [1, 2], 2), ([], [], None)],
)
def test_first_divergence(tokens, reference, expected):
    assert first_divergence(tokens, reference) == expected


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=12))
def test_first_divergence_is_where_the_common_prefix_ends(a, b):
    index = first_divergence(a, b)
    if index is None:
        assert a == b
    else:
        assert a[:index] == b[:index]
        assert a[index : index + 1] != b[index : index + 1]


def test_repetition_rate_by_hand():
    assert repetition_rate(range(7)) == 0.0
    assert repetition_rate(range(20)) == 0.0
    assert repetition_rate([5] * 17) == pytest.approx(9 / 10)  # ten 8-grams, one distinct
    assert repetition_rate([1, 2, 3, 1, 2, 3], n=3) == pytest.approx(1 / 4)  # 123 231 312 123
