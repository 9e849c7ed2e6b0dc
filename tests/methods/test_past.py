"""The states that drafters keep of what is committed are those of one pass over it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.controllers.base import ControllerBase
from specbench.decoding.protocol import Block
from specbench.methods.lookahead_draft import LookaheadDraft
from specbench.methods.lookahead_engine import LookaheadEngine
from specbench.methods.ouroboros import Options, Ouroboros
from specbench.methods.sps import SpeculativeSampling
from tests.decoding.tinies import ar_tokens, decode, tiny_draft

COUNT = 40
PROMPT = (256, *b"abcabcabcabc")


@dataclass
class Looker(ControllerBase):
    """Notes the committed tokens and their states at every block."""

    num_draft_tokens: int = 6
    block_size: int = 2
    signals: frozenset[str] = field(init=False, default=frozenset({"hidden", "past"}))
    seen: list[tuple[list[int], Tensor]] = field(default_factory=list)

    def begin(self, request: Any) -> None:
        self.request = request

    def more(self, block: Block) -> bool:
        assert block.past is not None
        self.seen.append((list(self.request.committed), block.past.clone()))
        return True


def drafter(name: str, controller: Looker) -> Any:
    if name == "sps":
        return SpeculativeSampling(tiny_draft(), controller)
    engine = LookaheadEngine.of(level=4, window=5, guess_set=4, seed=10)
    return Ouroboros(LookaheadDraft(tiny_draft(), engine, 64, True), controller, Options())


@pytest.mark.parametrize("name", ["sps", "ouroboros"])
def test_states_of_what_is_committed(name: str) -> None:
    looker = Looker()
    found = decode(drafter(name, looker)).generate(PROMPT, max_new_tokens=COUNT, seed=0)
    assert found.tokens == ar_tokens(COUNT, PROMPT)
    accepted = {step.num_accepted - (step.num_draft_tokens or 0) for step in found.steps}
    assert 0 in accepted or name == "ouroboros"  # a whole draft was right: its last token is read a step later
    assert len({len(committed) for committed, _ in looker.seen}) > 5
    for committed, past in looker.seen:
        with torch.inference_mode():
            out = tiny_draft().forward(torch.tensor([committed[:-1]]))
        assert out.normed is not None
        torch.testing.assert_close(past, out.normed[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["sps", "ouroboros"])
def test_nothing_else_changes(name: str) -> None:
    looking, plain = Looker(), Looker()
    plain.signals = frozenset({"hidden"})
    plain.more = lambda block: True  # type: ignore[method-assign]
    answers = [decode(drafter(name, one)).generate(PROMPT, max_new_tokens=COUNT, seed=0) for one in (looking, plain)]
    assert answers[0].tokens == answers[1].tokens
    assert [step.draft_tokens for step in answers[0].steps] == [step.draft_tokens for step in answers[1].steps]
