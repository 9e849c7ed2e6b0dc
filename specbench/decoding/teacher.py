"""One pass under AR's own prefix: what a model says in the place of every token, and by how much in float32."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.decoding.target import Target, fill, most_likely
from specbench.models.decoder import Decoder
from specbench.models.kv_cache import KVCache

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
def first_choices(
    decoder: Decoder, cache: KVCache, prompt: Sequence[int], answer: Sequence[int], *, vocab_size: int | None = None
) -> Tensor:
    """The decoder's greedy token [n] in the place of every token of `answer` [n], after the answer's own prefix.

    `cache` has room for len(prompt) + n rows and holds the first rows of the prompt, or none. `vocab_size`: only the
    ids below it are chosen from.
    """
    tokens = [*prompt, *answer]
    fill(decoder, cache, tokens[cache.length : len(prompt) - 1])
    chosen = []
    for first in range(len(prompt) - 1, len(tokens) - 1, _ROWS):
        rows = torch.tensor([tokens[first : min(first + _ROWS, len(tokens) - 1)]], device=decoder.device)
        logits = decoder.forward(rows, cache, start=first).logits
        assert logits is not None
        cache.keep(range(rows.shape[1]))
        chosen.append(most_likely(logits[0, :, :vocab_size])[1])
    return torch.cat(chosen)


def teacher_agreement(target: Target, prompt: Sequence[int], answer: Sequence[int]) -> float:
    """Share of `answer`'s tokens that are the argmax of a many-row pass under the answer's own prefix."""
    target.prefill_again(prompt, capacity=len(prompt) + len(answer))
    chosen = first_choices(target.decoder, target.cache, prompt, answer).tolist()
    return sum(own == token for own, token in zip(chosen, answer, strict=True)) / len(answer)
