from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.analysis.rows import counted
from specbench.analysis.speed import cost_ratio, ratio_of_means_speedup, speedup_metrics, time_metrics
from tests.analysis.frames import frame, pair_rows
from tests.results.rows import sample


def test_speedups_by_hand():
    rows = frame([*pair_rows("a", (10, 1.0), (10, 2.0)), *pair_rows("b", (30, 3.0), (20, 4.0))])
    result = speedup_metrics(rows)
    # AR 6 s / 30 tokens = 0.2; method 4 s / 40 tokens = 0.1
    assert result["walltime_speedup"] == pytest.approx(2.0)
    # with 0.5 s of prefill each: (7 / 30) / (5 / 40)
    assert result["end_to_end_speedup"] == pytest.approx((7 / 30) / (5 / 40))
    assert result["median_speedup"] == pytest.approx(2.0)
    assert result["mean_of_ratios_speedup"] == pytest.approx(2.0)
    rates, rates_ar = [10 / 1.5, 30 / 3.5], [10 / 2.5, 20 / 4.5]
    assert result["ratio_of_means_speedup"] == pytest.approx(np.mean(rates) / np.mean(rates_ar))
    assert result["ci_low"] is None
    assert result["speedup_specbench"] is None
    assert (result["num_timed"], result["noisy"]) == (2, False)


def test_noisy_when_one_long_sample_pulls_the_pooled_speedup():
    rows = [row for i in range(4) for row in pair_rows(f"s{i}", (10, 1.0), (10, 2.0))]
    result = speedup_metrics(frame([*rows, *pair_rows("slow", (100, 40.0), (100, 20.0))]))
    assert result["median_speedup"] == pytest.approx(2.0)
    assert result["walltime_speedup"] == pytest.approx(28 / 44)
    assert result["noisy"]


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 300), st.floats(1e-3, 100)), min_size=1, max_size=12))
def test_ar_against_itself_is_exactly_one(pairs):
    rows = frame([row for i, arm in enumerate(pairs) for row in pair_rows(f"s{i}", arm, arm)])
    result = speedup_metrics(rows)
    names = [name for name in result if name.endswith("speedup")] + ["ci_low", "ci_high"] * (len(pairs) >= 8)
    assert {result[name] for name in names} == {1.0}
    assert not result["noisy"]


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 99), st.floats(0.01, 9)), min_size=2, max_size=6), st.floats(0.2, 5))
def test_a_uniformly_faster_method_has_that_speedup_everywhere(pairs, factor):
    rows = frame([row for i, (n, t) in enumerate(pairs) for row in pair_rows(f"s{i}", (n, t), (n, t * factor))])
    result = speedup_metrics(rows)
    for name in ("walltime_speedup", "median_speedup", "mean_of_ratios_speedup"):
        assert result[name] == pytest.approx(factor)


def test_turns_and_repeats_of_a_conversation_are_one_cluster():
    turns = [*pair_rows("a", (10, 1.0), (10, 3.0)), *pair_rows("a", (10, 1.0), (10, 1.0), turn=1)]
    again = pair_rows("a", (20, 2.0), (20, 4.0), repeat=1)
    result = speedup_metrics(frame([*turns, *again]))
    assert result["num_timed"] == 1
    assert result["median_speedup"] == pytest.approx(2.0)


def test_one_untimed_turn_drops_the_conversation_from_speed():
    rows = [*pair_rows("a", (10, 1.0), (10, 2.0)), *pair_rows("b", (10, 1.0), (10, 9.0))]
    rows += pair_rows("b", (10, 1.0), (10, 9.0), turn=1, timed=False)
    result = speedup_metrics(frame(rows))
    assert result["num_timed"] == 1
    assert result["walltime_speedup"] == pytest.approx(2.0)


@pytest.mark.parametrize("arm", [0, 1])
def test_a_pair_of_which_one_arm_is_untimed_gives_no_speed(arm):
    disturbed = pair_rows("b", (10, 1.0), (10, 9.0), draft_s=5.0, num_tree_tokens=10)
    disturbed[arm]["timed"] = False
    rows = frame([*pair_rows("a", (10, 1.0), (10, 2.0), draft_s=0.5, num_tree_tokens=10), *disturbed])
    assert speedup_metrics(rows)["walltime_speedup"] == pytest.approx(2.0)
    assert cost_ratio(rows) == pytest.approx(0.05 / 0.2)


def test_without_a_baseline_or_without_timing_there_is_no_speedup():
    alone = frame([sample("a")])
    untimed = frame(pair_rows("a", (10, 1.0), (10, 2.0), timed=False))
    for rows in (alone, untimed):
        result = speedup_metrics(rows)
        assert result["num_timed"] == 0
        assert {value for name, value in result.items() if name not in ("num_timed", "noisy")} == {None}
    assert time_metrics(untimed)["tokens_per_second"] is None
    assert time_metrics(alone)["tokens_per_second"] == pytest.approx(10.0)
    assert set(speedup_metrics(alone)) == set(speedup_metrics(frame(pair_rows("a", (9, 1.0), (9, 1.0)))))


def test_specbench_recounts_ar_from_its_text():
    rows = frame([
        *pair_rows("a", (4, 1.5), (4, 1.5), text=" one two three "),
        *pair_rows("b", (5, 1.5), (5, 1.5), text="one two three four"),
    ])  # fmt: skip
    # a tokenizer with BOS: words + 1; minus one = words. Method rates 2 and 2.5 per s, AR rates 1.5 and 2.
    result = speedup_metrics(rows, count_tokens=lambda text: len(text.split(" ")) + 1)
    assert result["speedup_specbench"] == pytest.approx(4.5 / 3.5)
    assert result["ratio_of_means_speedup"] == pytest.approx(1.0)


def test_specbench_aggregate_equals_the_official_scorer(shared_data):
    from tokenizers import Tokenizer

    folder = shared_data / "golden" / "specbench_score"
    checked = 0
    for case in json.loads((folder / "expected.json").read_text())["pairs"]:
        files = [folder / case[name] for name in ("method", "baseline")]
        method, baseline = ([json.loads(line) for line in file.read_text().splitlines() if line] for file in files)
        if {row["question_id"] for row in method} != {row["question_id"] for row in baseline}:
            continue  # the official scorer compares unlike sets, which a pair never does
        tokenizer = Tokenizer.from_file(str(folder / case["tokenizer"] / "tokenizer.json"))
        rows = [row for arm, answers in (("method", method), ("baseline", baseline)) for row in stored(arm, answers)]
        result = speedup_metrics(frame(rows), count_tokens=lambda text, t=tokenizer: len(t.encode(text).ids))
        assert result["speedup_specbench"] == pytest.approx(case["expected"]["overall"]["speedup"], rel=1e-9)
        checked += 1
    assert checked >= 2


def stored(arm, answers):
    for answer in answers:
        choice = answer["choices"][0]
        for turn, (text, n, t) in enumerate(zip(choice["turns"], choice["new_tokens"], choice["wall_time"])):  # noqa: B905
            yield sample(
                str(answer["question_id"]), arm=arm, turn=turn, text=text, num_tokens=n, decode_s=t, prefill_s=0.0
            )


def test_ratio_of_means_of_nothing():
    assert ratio_of_means_speedup([], [], [], []) is None


def test_times_by_hand():
    phases = {"draft_s": 0.2, "verify_s": 1.0, "adapt_s": 0.1, "host_s": 0.2}
    rows = [
        sample("a", num_tokens=10, decode_s=1.0, prefill_s=0.5, ttft_s=0.6, **phases),
        sample("b", num_tokens=40, decode_s=2.0, prefill_s=1.5, ttft_s=1.6, **phases),
        sample("a", arm="baseline", num_tokens=10, decode_s=2.0, ttft_s=0.7),
    ]
    result = time_metrics(frame(rows))
    assert result["tokens_per_second"] == pytest.approx(50 / 3)
    assert result["tpot_s"] == pytest.approx(3 / 50)
    assert result["tpot_p50_s"] == pytest.approx(0.075)  # per conversation: 0.1 and 0.05
    assert result["ttft_s"] == pytest.approx(1.1)
    assert result["ttft_p95_s"] == pytest.approx(0.6 + 0.95)
    assert result["prefill_s"] == pytest.approx(2.0)
    assert result["draft_s"] == pytest.approx(0.4)
    assert result["verify_share"] == pytest.approx(2 / 3)
    assert result["baseline_tokens_per_second"] == pytest.approx(5.0)


def test_phases_are_null_for_generators_without_steps():
    result = time_metrics(frame([sample("a"), sample("b")]))
    assert {result[name] for name in ("draft_s", "verify_s", "adapt_s", "host_s", "draft_share")} == {None}
    assert result["decode_s"] == pytest.approx(2.0)


def test_cost_ratio_by_hand():
    method, ar = pair_rows("a", (10, 1.0), (10, 2.0))
    rows = frame([method | {"draft_s": 0.4, "num_tree_tokens": 20}, ar])
    assert cost_ratio(rows) == pytest.approx((0.4 / 20) / (2.0 / 10))
    assert cost_ratio(frame([method | {"draft_s": 0.4, "num_tree_tokens": 0}, ar])) is None
    assert cost_ratio(frame([method, ar])) is None
    assert cost_ratio(frame([method | {"draft_s": 0.4, "num_tree_tokens": 20}])) is None


def test_attempts_that_do_not_count_enter_nothing():
    good = pair_rows("a", (10, 1.0), (10, 2.0), attempt=1)
    drifted = pair_rows("a", (10, 1.0), (10, 8.0), used=False)
    assert speedup_metrics(counted(frame([*drifted, *good])))["walltime_speedup"] == pytest.approx(2.0)
