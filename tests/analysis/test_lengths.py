"""Draft lengths by hand."""

from __future__ import annotations

import pandas as pd

from specbench.analysis.lengths import accepted_by_drafted, drafted_lengths, oracle_lengths, stop_reasons
from tests.analysis.frames import frame
from tests.results.rows import step


def chains(*pairs: tuple[int, int], **values: object) -> pd.DataFrame:
    """Steps of one answer: (drafted, accepted)."""
    counts = [
        {
            "num_draft_tokens": drafted,
            "num_tree_tokens": drafted,
            "num_accepted": accepted,
            "num_accepted_spine": accepted,
            "num_emitted": accepted + 1,
        }
        for drafted, accepted in pairs
    ]
    return frame([step(index=index, **count, **values) for index, count in enumerate(counts)], "steps")


def test_accepted_tokens_by_length() -> None:
    table = accepted_by_drafted(chains((4, 2), (4, 3), (0, 0), (2, 2)))
    assert table["drafted"].tolist() == [2, 4]
    assert table["mean_accepted"].tolist() == [2.0, 2.5]
    assert table["num_steps"].tolist() == [1, 2]


def test_steps_that_drafted_nothing_are_part_of_the_histogram() -> None:
    table = drafted_lengths(chains((4, 2), (4, 3), (0, 0)))
    assert dict(zip(table["length"], table["num_steps"], strict=True)) == {0: 1, 4: 2}


def test_empty_drafts_of_a_method_without_a_spine_are_no_lengths() -> None:
    steps = [step(index=0, num_draft_tokens=None), step(index=1, num_draft_tokens=0)]
    assert drafted_lengths(frame(steps, "steps")).empty


def test_the_oracle_drafts_what_is_accepted() -> None:
    """The answer: two right, one wrong, one right, one wrong."""
    table = oracle_lengths(chains((4, 2), (4, 1)), longest=4)
    assert table is not None
    assert dict(zip(table["length"], table["num_steps"], strict=True)) == {1: 1, 2: 1}
    capped = oracle_lengths(chains((4, 2), (4, 1)), longest=1)
    assert capped is not None
    assert capped["length"].max() == 1


def test_trees_have_no_oracle() -> None:
    tree = frame([step(num_draft_tokens=2, num_tree_tokens=5)], "steps")
    assert oracle_lengths(tree, longest=4) is None


def test_only_steps_that_say_why_count() -> None:
    said = pd.concat([chains((4, 2), (4, 1), stop_reason="cap"), chains((1, 1))])
    assert stop_reasons(said).to_dict("records") == [{"stop_reason": "cap", "num_steps": 2}]
