"""What a controller may look at: of a draft that scores some tokens only it is what the whole row would say."""

from __future__ import annotations

import pytest
import torch

from specbench.decoding.protocol import SIGNALS, Block
from specbench.methods.signals import with_signals
from specbench.types import Sampling

VOCAB = 40
SCORED = torch.tensor([3, 5, 8, 11, 12, 20, 21, 25, 30, 31, 33, 39])


def rows(scored: torch.Tensor) -> torch.Tensor:
    logits = torch.full((2, VOCAB), float("-inf"))
    logits[:, scored] = torch.randn(2, len(scored), generator=torch.Generator().manual_seed(0))
    return logits


def signals(scored: torch.Tensor, sampling: Sampling, *, told: bool) -> Block:
    logits = rows(scored)
    block = Block(0, [int(scored[0]), int(scored[-1])])
    given, ids = (logits[:, scored], scored) if told else (logits, None)
    return with_signals(block, SIGNALS, sampling, given, torch.zeros(2, 4), scored=ids)


@pytest.mark.parametrize("count", [12, 4])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.7, top_p=0.9)], ids=["greedy", "nucleus"])
def test_knowing_which_tokens_are_scored_changes_nothing(count: int, sampling: Sampling) -> None:
    found, whole = (signals(SCORED[:count], sampling, told=told) for told in (True, False))
    for name in SIGNALS:
        assert torch.allclose(getattr(found, name), getattr(whole, name), atol=1e-6), name


def test_they_are_those_of_the_rows() -> None:
    found, logits = signals(SCORED, Sampling(), told=True), rows(SCORED)
    p = logits.softmax(-1)
    assert found.prob is not None
    assert found.prob.tolist() == pytest.approx([float(p[0, 3]), float(p[1, 39])])
    assert found.entropy is not None
    assert found.entropy.tolist() == pytest.approx(torch.special.entr(p).sum(-1).tolist(), abs=1e-5)
    best = logits.sort(dim=-1, descending=True).values
    assert found.margin is not None
    assert found.margin.tolist() == pytest.approx((best[:, 0] - best[:, 1]).tolist())
