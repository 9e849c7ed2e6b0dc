"""A verified window on a tiny model, and what really running a skip set over it gives."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from specbench.decoding.target import Target, fill
from specbench.methods.knapsack import Window
from specbench.models.decoder import Decoder
from specbench.types import Draft, Needs


def verified(decoder: Decoder, prefix: Sequence[int], rows: Sequence[int]) -> tuple[Target, Window]:
    """A target whose cache holds prefix and rows, and the states of the rows from one verify pass."""
    target, after = Target(decoder), tuple(range(1, decoder.num_sublayers))
    with torch.inference_mode():
        target.prefill([*prefix, rows[0]], capacity=len(prefix) + len(rows) + 8)
        draft = Draft(tokens=torch.tensor(rows[1:], dtype=torch.int64), spine=len(rows) - 1)
        seen = target.verify(rows[0], draft, Needs(residuals=after), greedy=True)
        target.cache.keep(range(len(rows)))
    return target, Window(torch.stack([seen.residuals[index] for index in after]), len(prefix))


@torch.inference_mode()
def really_run(decoder: Decoder, prefix: Sequence[int], rows: Sequence[int], skip: Collection[int]) -> Tensor:
    """[r, V] logits of the rows without the skipped sublayers, behind a prefix that the whole model has read."""
    cache = decoder.new_cache(len(prefix) + len(rows))
    fill(decoder, cache, prefix)
    logits = decoder.forward(torch.tensor([list(rows)]), cache, start=len(prefix), skip=skip).logits
    assert logits is not None
    return logits[0]


def agreement(decoder: Decoder, prefix: Sequence[int], rows: Sequence[int], skip: Collection[int]) -> float:
    """The share of rows whose most likely next token survives the skipping."""
    full, without = really_run(decoder, prefix, rows, ()), really_run(decoder, prefix, rows, skip)
    return float((full.argmax(-1) == without.argmax(-1)).double().mean())
