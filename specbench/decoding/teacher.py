"""Judging a divergence from AR: what the target says under AR's own prefix, and by how much in float32."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specbench.decoding.target import Target
from specbench.models.decoder import Decoder

_ROWS = 64  # rows whose logits exist at once


@torch.inference_mode()
def logit_gap(decoder: Decoder, prefix: Sequence[int], first: int, second: int) -> float:
    """|logit of token `first` - logit of token `second`| after `prefix`, the same weights computed in float32."""
    wide = torch.float64 if decoder.dtype == torch.float64 else torch.float32
    ids = torch.tensor([list(prefix)], device=decoder.device)
    logits = decoder.forward(decoder.embed(ids).to(wide), logits="last").logits
    assert logits is not None
    return float((logits[0, -1, first] - logits[0, -1, second]).abs())


@torch.inference_mode()
def teacher_agreement(target: Target, prompt: Sequence[int], answer: Sequence[int]) -> float:
    """Share of `answer`'s tokens that are the argmax of a many-row pass under the answer's own prefix."""
    tokens = [*prompt, *answer]
    target.prefill(prompt, capacity=len(tokens))
    agreed = 0
    for first in range(len(prompt) - 1, len(tokens) - 1, _ROWS):
        rows = torch.tensor([tokens[first : min(first + _ROWS, len(tokens) - 1)]], device=target.decoder.device)
        logits = target.decoder.forward(rows, target.cache, start=first).logits
        assert logits is not None
        target.cache.keep(range(rows.shape[1]))
        expected = torch.tensor(tokens[first + 1 : first + 1 + rows.shape[1]], device=rows.device)
        agreed += int((logits[0].argmax(-1) == expected).sum())
    return agreed / len(answer)
