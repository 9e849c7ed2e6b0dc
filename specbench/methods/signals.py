"""What a controller may look at: numbers of the rows that predicted a block's tokens."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from specbench.decoding.protocol import Block
from specbench.decoding.sampling import probabilities
from specbench.types import Sampling

_TOPK = 10


def with_signals(
    block: Block,
    wanted: Collection[str],
    sampling: Sampling,
    logits: Tensor,
    states: Tensor,
    *,
    scored: Tensor | None = None,
) -> Block:
    """The block with the `wanted` signals, of logits [b, n] and states [b, d] of the rows that predicted its tokens.

    `scored` [n]: the tokens that the logits are of, ascending; None = all.
    """
    index = torch.tensor(block.tokens, device=logits.device)
    if scored is not None:
        index = torch.searchsorted(scored, index)
    log_p = logits.log_softmax(-1) if sampling.greedy else probabilities(logits, sampling).log()
    top = logits.topk(2, dim=-1).values if "margin" in wanted else None
    return replace(
        block,
        prob=log_p.gather(1, index[:, None])[:, 0].exp() if "prob" in wanted else None,
        entropy=_entropy(log_p) if "entropy" in wanted else None,
        raw_entropy=_entropy(log_p if sampling.greedy else logits.log_softmax(-1)) if "raw_entropy" in wanted else None,
        margin=top[:, 0] - top[:, 1] if top is not None else None,
        topk=_largest(log_p).exp() if "topk" in wanted else None,
        hidden=states if "hidden" in wanted else None,
    )


def _largest(log_p: Tensor) -> Tensor:
    """The largest of each row, [b, 10] also where there are fewer."""
    count = min(_TOPK, log_p.shape[1])
    return pad(log_p.topk(count, dim=-1).values, (0, _TOPK - count), value=float("-inf"))


def _entropy(log_p: Tensor) -> Tensor:
    """Nats, of rows of log-probabilities [b, V]; what has no probability adds nothing."""
    return -(log_p.exp() * log_p).nan_to_num(0.0).sum(-1)
