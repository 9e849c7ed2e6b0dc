"""What a controller may look at: numbers of the rows that predicted a block's tokens."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch
from torch import Tensor

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
    """The block with the `wanted` signals, of logits [b, V] and states [b, d] of the rows that predicted its tokens.

    `scored` [n]: the only tokens whose logits are not -inf, where the drafter knows them; others are not looked at.
    """
    few = logits if scored is None or len(scored) < _TOPK else logits[:, scored]
    index = torch.tensor(block.tokens, device=logits.device)[:, None]
    if sampling.greedy:
        total = few.logsumexp(-1, keepdim=True)
        log_p, own = few - total, (logits.gather(1, index) - total)[:, 0]
    else:
        log_p = probabilities(logits, sampling).log()
        own = log_p.gather(1, index)[:, 0]
    top = few.topk(2, dim=-1).values if "margin" in wanted else None
    return replace(
        block,
        prob=own.exp() if "prob" in wanted else None,
        entropy=_entropy(log_p) if "entropy" in wanted else None,
        raw_entropy=_entropy(log_p if sampling.greedy else few.log_softmax(-1)) if "raw_entropy" in wanted else None,
        margin=top[:, 0] - top[:, 1] if top is not None else None,
        topk=log_p.topk(_TOPK, dim=-1).values.exp() if "topk" in wanted else None,
        hidden=states if "hidden" in wanted else None,
    )


def _entropy(log_p: Tensor) -> Tensor:
    """Nats, of rows of log-probabilities [b, V]; what has no probability adds nothing."""
    return -(log_p.exp() * log_p).nan_to_num(0.0).sum(-1)
