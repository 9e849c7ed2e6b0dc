"""Matched cells: known differences are found, equal prompts count once, and both rules say what they should."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from specbench.analysis import matched_cells
from specbench.analysis.matched_cells import (
    CELL,
    IMPROVED,
    OTHER_PARTS,
    TOO_FEW,
    UNCHANGED,
    WORSE,
    Matched,
    Rule,
    by_tuned_parts,
    compare,
    differing,
    judge,
    main_tuning,
    match,
    percentile_interval,
    rates,
    recovered,
    replicates,
    two_sided_p,
)
from specbench.results.schema import DERIVED, to_frame
from specbench.types import DataError

PROPOSED = 140  # about 35 steps of 4 tokens
FAST = Rule(draws=2000)


def arm(variant: str, accepted: Sequence[int], *, proposed: int = PROPOSED, **values: Any) -> list[dict[str, Any]]:
    """Rows of one arm, a prompt each; `prompts` names the prompts where some are equal."""
    original = variant == "original"
    prompts = values.pop("prompts", [f"p{i}" for i in range(len(accepted))])
    cell = {
        "run_id": f"run-{variant}",
        "pair": "big <- small",
        "converter": "none" if original else "transmla",
        "budget": 1.0 if original else 0.5,
        "variant": variant,
        "options": "{}" if original else '{"factor": "whitened"}',
        "tuning": "{}",
        "task": "gsm8k",
        "setting": "float32, 4 drafted, 128 new",
        "acceptance": "replay",
        **values,
    }
    numbers = {"proposed": proposed, "emitted": 128, "steps": proposed // 4}
    return [
        {**cell, "sample_id": f"s{i}", "prompt_sha256": prompt, "accepted": int(count), **numbers}
        for i, (prompt, count) in enumerate(zip(prompts, accepted, strict=True))
    ]


def cells(*arms: list[dict[str, Any]]) -> pd.DataFrame:
    return to_frame(pa.Table.from_pylist([row for rows in arms for row in rows], schema=DERIVED["cells"]))


def drawn(rate: float, count: int, seed: int, *, spread: float = 0.1) -> np.ndarray:
    """Accepted tokens of prompts whose own rates scatter around `rate`, the same way for every `rate` of one seed."""
    generator = np.random.default_rng(seed)
    own = generator.normal(0.0, spread, count)
    return generator.binomial(PROPOSED, np.clip(rate + own, 0.0, 1.0))


def matched(before: Sequence[int], after: Sequence[int]) -> Matched:
    frame = cells(arm("none", before), arm("functional", after))
    return match(frame[frame["variant"] == "none"], frame[frame["variant"] == "functional"])


# ---- the interval


def test_the_interval_holds_a_known_difference_as_often_as_it_says() -> None:
    """Prompts differ much, arms little: only the paired draws give intervals this narrow that still hold."""
    held, widths = 0, []
    for seed in range(120):
        generator = np.random.default_rng(seed)
        own = np.clip(generator.normal(0.6, 0.15, 100), 0.05, 0.9)
        before, after = generator.binomial(PROPOSED, own), generator.binomial(PROPOSED, own + 0.03)
        found = judge(matched(before, after), Rule(draws=1000, seed=seed))
        low, high = found.interval
        held += low <= 0.03 <= high
        widths.append(high - low)
    assert 0.88 <= held / 120 <= 1.0  # 95 %, give or take what 120 trials allow
    assert np.mean(widths) < 0.04  # unpaired it would be about 0.08


def test_draws_follow_the_seed_and_the_stream() -> None:
    one = matched(drawn(0.6, 40, 0), drawn(0.62, 40, 1))
    first = replicates(one, FAST, stream="gsm8k")
    assert len(first) == FAST.draws
    assert np.array_equal(first, replicates(one, FAST, stream="gsm8k"))
    assert not np.array_equal(first, replicates(one, FAST, stream="cnn_dm"))
    assert not np.array_equal(first, replicates(one, Rule(2000, seed=1), stream="gsm8k"))


def test_equal_arms_do_not_differ_in_any_draw() -> None:
    counts = drawn(0.6, 30, 0)
    found = judge(matched(counts, counts), FAST)
    assert (found.delta, found.interval, found.p) == (0.0, (0.0, 0.0), 1.0)
    assert (found.published, found.label) == (UNCHANGED, UNCHANGED)


def test_repeated_prompts_make_nothing_surer() -> None:
    """Every prompt four times over: the same pooled rates, the same clusters, the same interval."""
    before, after = drawn(0.6, 20, 3), drawn(0.63, 20, 4)
    prompts = [f"p{i}" for i in range(20)]
    once = cells(arm("none", before), arm("functional", after))
    often = cells(
        arm("none", np.tile(before, 4), prompts=prompts * 4), arm("functional", np.tile(after, 4), prompts=prompts * 4)
    )
    first, second = (compare(frame, "functional", "none", FAST).cells.iloc[0] for frame in (once, often))
    assert (first["prompts"], second["prompts"]) == (20, 80)
    assert first["clusters"] == second["clusters"] == 20
    for name in ("before", "after", "delta_pp", "low_pp", "high_pp", "p"):
        assert first[name] == pytest.approx(second[name])
    apart = cells(arm("none", np.tile(before, 4)), arm("functional", np.tile(after, 4)))
    naive = compare(apart, "functional", "none", FAST).cells.iloc[0]
    assert naive["high_pp"] - naive["low_pp"] < 0.7 * (second["high_pp"] - second["low_pp"])


def test_pooled_rates_weigh_prompts_by_what_was_drafted() -> None:
    long, short = arm("none", [90], proposed=100), arm("none", [1], proposed=10)
    short[0] |= {"sample_id": "s1", "prompt_sha256": "p1"}
    assert rates(cells([*long, *short]))["acceptance_rate"].tolist() == [pytest.approx(91 / 110)]


def test_small_helpers() -> None:
    assert percentile_interval(np.arange(1001.0)) == pytest.approx((25.0, 975.0))
    assert two_sided_p(np.array([1.0] * 99)) == pytest.approx(2 / 100)
    assert two_sided_p(np.array([1.0, -1.0] * 50)) == 1.0


# ---- the rules


@pytest.mark.parametrize(
    ("change", "noise", "published", "ours"),
    [
        (+10, 0, IMPROVED, IMPROVED),
        (-10, 0, WORSE, WORSE),
        (0, 0, UNCHANGED, UNCHANGED),
        (+2, 40, IMPROVED, UNCHANGED),  # a difference that the prompts do not agree on
        (-2, 40, WORSE, UNCHANGED),
    ],
)
def test_both_rules_side_by_side(change: int, noise: int, published: str, ours: str) -> None:
    before = np.full(40, 70)
    wobble = np.tile([noise, -noise], 20)  # sums to nothing, so that the pooled difference stays `change`
    found = judge(matched(before, before + change + wobble), FAST)
    assert found.delta == pytest.approx(change / PROPOSED)
    assert (found.published, found.label) == (published, ours)


def test_a_sure_but_small_difference_is_unchanged_by_both_rules() -> None:
    before = np.full(50, 700)
    frame = cells(arm("none", before, proposed=1400), arm("functional", before + 5, proposed=1400))
    found = compare(frame, "functional", "none", FAST).cells.iloc[0]
    assert found["low_pp"] > 0
    assert (found["published"], found["label"]) == (UNCHANGED, UNCHANGED)
    wider = compare(frame, "functional", "none", Rule(2000, tolerance=0.003)).cells.iloc[0]
    assert (wider["published"], wider["label"]) == (IMPROVED, IMPROVED)


def test_few_prompts_give_no_interval() -> None:
    found = judge(matched([70] * 7, [90] * 7), FAST)
    assert (found.interval, found.p, found.published, found.label) == (None, None, IMPROVED, TOO_FEW)


# ---- cells together


def four_cells() -> pd.DataFrame:
    """Two tasks, two converters; tuning helps transmla by 20 of 140 tokens and does nothing for mha2mla."""
    frames = []
    for number, task in enumerate(("gsm8k", "cnn_dm")):
        for converter, gain in (("transmla", 20), ("mha2mla", 0)):
            lost = drawn(0.5, 24, number)
            frames.append(arm("none", lost, task=task, converter=converter))
            frames.append(arm("functional", lost + gain, task=task, converter=converter))
        frames.append(arm("original", drawn(0.5, 24, number) + 30, task=task))
    return cells(*frames)


def test_all_cells_are_counted_and_pooled() -> None:
    frame, pooled = compare(four_cells(), "functional", "none", FAST)
    assert len(frame) == pooled["cells"] == 4
    assert frame.groupby("converter")["label"].unique().map(list).to_dict() == {
        "transmla": [IMPROVED],
        "mha2mla": [UNCHANGED],
    }
    assert pooled["published"] == {IMPROVED: 2, UNCHANGED: 2, WORSE: 0}
    assert pooled["label"] == {IMPROVED: 2, UNCHANGED: 2, WORSE: 0, TOO_FEW: 0}
    assert pooled["mean_delta_pp"] == pytest.approx(100 * 10 / PROPOSED)
    assert pooled["low_pp"] == pytest.approx(pooled["high_pp"])  # the gain is the same for every prompt
    assert (pooled["up"], pooled["down"], pooled["sign_p"]) == (2, 0, 0.5)


def test_q_values_are_benjamini_hochbergs() -> None:
    frame = compare(four_cells(), "functional", "none", FAST).cells.sort_values("p")
    p, q = frame["p"].to_numpy(), frame["q"].to_numpy()
    by_hand = np.minimum.accumulate((p * len(p) / np.arange(1, len(p) + 1))[::-1])[::-1]
    assert q == pytest.approx(np.minimum(by_hand, 1.0))
    assert (q >= p).all()


def test_the_original_draft_serves_all_converters_of_its_pair() -> None:
    frame = compare(four_cells(), "none", "original", FAST).cells
    assert len(frame) == 4
    assert frame["delta_pp"].to_numpy() == pytest.approx([-100 * 30 / PROPOSED] * 4)
    assert (frame["label"] == WORSE).all()


def test_what_tuning_gives_back() -> None:
    found = recovered(four_cells())
    assert found.set_index(["converter", "task"])["share"].to_dict() == {
        ("transmla", "gsm8k"): pytest.approx(2 / 3),
        ("mha2mla", "gsm8k"): pytest.approx(0.0),
        ("transmla", "cnn_dm"): pytest.approx(2 / 3),
        ("mha2mla", "cnn_dm"): pytest.approx(0.0),
    }
    assert recovered(four_cells(), least_loss=0.3).empty


def test_ways_of_tuning_are_rows_of_their_own() -> None:
    frame = cells(
        arm("none", drawn(0.5, 20, 0)),
        arm("functional", drawn(0.6, 20, 0), tuning='{"train_params": "qkv"}'),
        arm("functional", drawn(0.55, 20, 0), tuning='{"train_params": "qk"}'),
    )
    found = compare(frame, "functional", "none", FAST).cells
    assert sorted(found["tuning"]) == ['{"train_params": "qk"}', '{"train_params": "qkv"}']
    assert found["before"].nunique() == 1
    assert found["after"].nunique() == 2


def ablation() -> pd.DataFrame:
    """One cell tuned in three ways, another that was tuned in one way only, and that is not the usual one."""
    tuned = {parts: json.dumps({"train_params": parts}) for parts in ("qkv", "qk_down", "qk")}
    return cells(
        arm("none", drawn(0.5, 20, 0)),
        arm("functional", drawn(0.6, 20, 0), tuning=tuned["qkv"]),
        arm("functional", drawn(0.55, 20, 0), tuning=tuned["qk_down"]),
        arm("functional", drawn(0.5, 20, 0), tuning=tuned["qk"]),
        arm("none", drawn(0.5, 20, 0), converter="svd"),
        arm("functional", drawn(0.6, 20, 0), converter="svd", tuning=tuned["qk"]),
    )


def test_an_ablation_adds_no_cells() -> None:
    found = compare(main_tuning(ablation()), "functional", "none", FAST).cells
    assert [json.loads(text)["train_params"] for text in found["tuning"]] == ["qkv", "qk"]
    assert len(found[CELL].drop_duplicates()) == 2


def test_tuned_parts_are_compared_with_tuning_all_of_them() -> None:
    rows = by_tuned_parts(ablation())
    for parts in OTHER_PARTS:
        (row,) = compare(rows, parts, "qkv", FAST).cells.to_dict("records")
        assert row["delta_pp"] < -3
        assert row["label"] == WORSE
        assert row["tuning"] == "{}"


def test_texts_of_settings_name_what_differs() -> None:
    texts = pd.Series(['{"a": 1, "b": 2}', '{"a": 1, "b": 3}', '{"a": 1}', "{}"])
    assert differing(texts) == ["b=2", "b=3", "", ""]


def test_prompts_that_two_runs_of_an_arm_share_count_once() -> None:
    few = arm("none", [70] * 8, run_id="small")
    frame = cells(arm("none", [70] * 20), few, arm("functional", [90] * 20))
    assert compare(frame, "functional", "none", FAST).cells["prompts"].tolist() == [20]
    assert rates(frame).set_index("variant")["prompts"].to_dict() == {"none": 20, "functional": 20}


def test_only_shared_prompts_are_compared() -> None:
    frame = cells(arm("none", [70] * 20), arm("functional", [90] * 12))
    assert compare(frame, "functional", "none", FAST).cells["prompts"].tolist() == [12]


def test_arms_that_do_not_match_are_refused() -> None:
    before, after = cells(arm("none", [70] * 9)), cells(arm("functional", [90] * 9))
    with pytest.raises(DataError, match="share no prompt"):
        match(before, after.assign(sample_id="other"))
    with pytest.raises(DataError, match="different prompts"):
        match(before, after.assign(prompt_sha256="other"))


def test_no_cell_without_its_arms() -> None:
    frame, pooled = compare(cells(arm("functional", [90] * 9)), "functional", "none", FAST)
    assert frame.empty
    assert pooled["cells"] == 0
    assert pooled["mean_delta_pp"] is None
    assert matched_cells.recovered(cells(arm("functional", [90] * 9))).empty
