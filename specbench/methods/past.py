"""States of all that a draft model has read, for controllers that look back over the whole context."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.decoding.target import PREFILL_CHUNK
from specbench.models.decoder import Decoder
from specbench.models.kv_cache import KVCache


class Past:
    """Row i is the state [d] after the final norm that the token in row i of the cache left behind."""

    def __init__(self, decoder: Decoder, cache: KVCache) -> None:
        self._decoder, self._cache = decoder, cache
        width = decoder.spec.hidden_size
        self._rows = torch.zeros(cache.capacity, width, dtype=decoder.norm.dtype, device=decoder.device)

    def put(self, start: int, states: Tensor) -> None:
        """States [n, d] of the rows from `start` on."""
        self._rows[start : start + states.shape[0]] = states

    def first(self, count: int) -> Tensor:
        """The first `count` rows [count, d], not copied."""
        return self._rows[:count]

    def fill(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the cache in chunks, as a prefill without logits, and keep their states."""
        cache = self._cache
        for first in range(0, len(tokens), PREFILL_CHUNK):
            chunk = torch.tensor([list(tokens[first : first + PREFILL_CHUNK])], device=self._decoder.device)
            self.put(cache.length, self.states(chunk))
            cache.keep(range(chunk.shape[1]))

    def states(self, ids: Tensor) -> Tensor:
        """States [n, d] of one pass over ids [1, n] behind the cache."""
        out = self._decoder.forward(ids, self._cache, start=self._cache.length, logits="none")
        return self._decoder.final_norm(out.hidden[0])
