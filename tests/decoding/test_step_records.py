"""What a step says about its draft: why it ended, what the rule thought, and how long it should have been."""

from __future__ import annotations

import pytest

from specbench.controllers.confidence import ConfidenceStop
from specbench.decoding.loop import oracle_length
from specbench.methods.pld import PromptLookup
from specbench.methods.sps import SpeculativeSampling
from specbench.types import Verdict
from tests.decoding.tinies import PROMPT, Scripted, ar_tokens, chain, decode, knows, tiny_draft

COUNT = 24


def verdict(accepted: int, emitted: int, *, stopped: bool = False) -> Verdict:
    return Verdict(tuple(range(accepted)), (0,) * emitted, accepted, accepted, 0, stopped)


@pytest.mark.parametrize(
    ("accepted", "emitted", "stopped", "expected"),
    [
        (2, 3, False, 2),  # the third was rejected
        (0, 1, False, 0),
        (4, 5, False, None),  # all accepted: a fifth might have been
        (4, 4, True, 4),  # the last drafted token was the stop id
        (4, 5, True, None),  # the stop id came from the target; whether the draft knew it is not seen
        (2, 2, True, 2),
    ],
)
def test_oracle_length(accepted: int, emitted: int, stopped: bool, expected: int | None) -> None:
    assert oracle_length(chain([1, 2, 3, 4]), verdict(accepted, emitted, stopped=stopped)) == expected


def test_nothing_drafted_says_nothing_about_the_best_length() -> None:
    assert oracle_length(chain([]), verdict(0, 1)) is None
    assert oracle_length(chain([1, 2], spine=None), verdict(1, 2)) is None


def test_the_oracle_length_is_where_the_draft_leaves_ars_answer() -> None:
    answer = ar_tokens(COUNT)
    known = knows(answer)

    def script(committed: list[int], budget: int):  # two right, then one that is not
        tokens = known(committed, min(3, budget))
        return chain([*tokens[:2], *((token + 1) % 256 for token in tokens[2:])])

    found = decode(Scripted(script)).generate(PROMPT, max_new_tokens=COUNT, seed=0)
    assert {step.oracle_length for step in found.steps[:-1]} == {2}


def test_steps_carry_reasons_and_scores() -> None:
    drafter = SpeculativeSampling(tiny_draft(), ConfidenceStop(6, threshold=0.3))
    found = decode(drafter).generate(PROMPT, max_new_tokens=COUNT, seed=0)
    assert {"rule", "cap"} & {step.stop_reason for step in found.steps}
    for step in found.steps:
        assert "stop_reason" not in step.info
        if not step.num_draft_tokens:
            assert step.stop_reason == "budget"
            continue
        assert step.block_lengths == (1,) * step.num_draft_tokens
        assert len(step.block_scores) == step.num_draft_tokens - (step.stop_reason != "rule")
        below = [score < 0.3 for score in step.block_scores]
        assert below == [False] * (len(below) - 1) + [step.stop_reason == "rule"] or not below


def test_drafters_without_a_controller_have_reasons_of_their_own() -> None:
    found = decode(PromptLookup(2, 3, 4)).generate((65,) * 9, max_new_tokens=6, seed=0)
    assert all(step.block_scores is None for step in found.steps)
    assert found.steps[-1].stop_reason == "budget"
