"""How far the draft's distributions are from the target's, and the gradient of that, a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_ROWS = {"cpu": 128, "cuda": 4096}  # rows whose distributions exist at once: what fits in caches, what fills a GPU

# (log p [r, n], log q [r, n]) -> divergence a row [r]; p is the target's, less its mass outside the draft's tokens.
Divergence = Callable[[Tensor, Tensor], Tensor]


def forward_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """sum p (log p - log q); its gradient is that of the target's whole distribution, since q is 0 elsewhere."""
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def total_variation(log_p: Tensor, log_q: Tensor) -> Tensor:
    """1 - sum min(p, q): the chance that a token drawn from q is rejected."""
    return 1 - torch.minimum(log_p, log_q).exp().sum(-1)


DIVERGENCES: dict[str, Divergence] = {"kl": forward_kl, "tv": total_variation}


def backward(normed: Tensor, states: Tensor, log_z: Tensor, head: Tensor, *, divergence: Divergence) -> float:
    """The mean divergence of n rows; its gradient goes on into what made `normed`.

    `normed` [n, d]: the draft's final states. `states` [n, d] and `log_z` [n]: the target's, and the normaliser of its
    logits. `head` [V_draft, d]: the rows of the target's head that the draft scores.
    """
    rows = normed.detach().requires_grad_()
    total = torch.zeros((), dtype=torch.float64, device=rows.device)
    count = _ROWS.get(rows.device.type, _ROWS["cpu"])
    for first in range(0, rows.shape[0], count):
        part = slice(first, first + count)
        log_p = states[part].to(head.dtype) @ head.T - log_z[part, None]
        log_q = (rows[part] @ head.T).log_softmax(-1)
        loss = divergence(log_p, log_q).sum() / rows.shape[0]
        loss.backward()  # adds into rows.grad
        total += loss.detach()
    assert rows.grad is not None
    normed.backward(rows.grad)
    return float(total)
