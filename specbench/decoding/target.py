"""The target model with its cache: prefill, and the one verify pass of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from specbench.models.decoder import NO_TAPS, Decoder, Output, Taps, ancestor_mask
from specbench.models.kv_cache import KVCache
from specbench.types import Draft, Needs, SampleError, VerifyResult

NO_NEEDS = Needs()
_BLOCK = 256  # logits of one stage of the argmax
_TOGETHER = 16  # rows whose logits a CPU reads at once: what is made of more does not stay in its cache
PREFILL_CHUNK = 512  # rows of one prefill pass; bounds its activations


class Target:
    """A decoder that verifies drafts. One cache serves all prompts and grows to the longest one seen."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self._cache: KVCache | None = None
        self._prompt: tuple[int, ...] = ()  # whose rows the cache begins with; () = unknown

    @property
    def cache(self) -> KVCache:
        assert self._cache is not None, "prefill comes first"
        return self._cache

    def prefill(self, prompt: Sequence[int], *, capacity: int, needs: Needs = NO_NEEDS) -> VerifyResult | None:
        """Read prompt[:-1] without logits; `capacity` counts the rows that the whole request can use.

        Returns what `needs` asks of the last `needs.prompt_rows` rows read, else None.
        """
        self.reserve(capacity)
        self._prompt = tuple(prompt)
        fill(self.decoder, self.cache, prompt[: max(0, len(prompt) - 1 - needs.prompt_rows)])
        rest = prompt[self.cache.length : -1]
        if not rest:
            return None
        start = self.cache.length
        out = self.decoder.forward(self._ids(rest), self.cache, start=start, taps=_taps(needs), logits=_logits(needs))
        self.cache.keep(range(len(rest)))
        return _result(out, needs, greedy=needs.argmax)

    def prefill_again(self, prompt: Sequence[int], *, capacity: int) -> None:
        """As `prefill`, but for a prompt that was read last its rows, which every request leaves in place, are kept."""
        if self._prompt == tuple(prompt) and self.cache.capacity >= capacity:
            self.cache.truncate(len(prompt) - 1)
        else:
            self.prefill(prompt, capacity=capacity)

    def reserve(self, capacity: int) -> None:
        """An empty cache for `capacity` rows."""
        self._prompt = ()
        self._cache = self.decoder.reserve(self._cache, capacity)

    def verify(self, root: int, draft: Draft, needs: Needs, *, greedy: bool) -> VerifyResult:
        """Logits or argmax for the root and every draft row (T = k + 1), and what `needs` names."""
        start = self.cache.length
        if start + len(draft) + 1 > self.cache.capacity:
            raise SampleError(f"a draft of {len(draft)} rows does not fit behind {start} of {self.cache.capacity} rows")
        positions, mask = self._tree(draft, start)
        out = self.decoder.forward(
            self._rows(root, draft),
            self.cache,
            start=start,
            positions=positions,
            mask=mask,
            resume=draft.resume,
            taps=_taps(needs),
        )
        return _result(out, needs, greedy=greedy)

    def _ids(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor([list(tokens)], device=self.decoder.device)

    def _rows(self, root: int, draft: Draft) -> Tensor:
        head = self._ids([root])
        return head if len(draft) == 0 else torch.cat([head, draft.tokens.to(self.decoder.device)[None]], dim=1)

    def _tree(self, draft: Draft, start: int) -> tuple[Tensor | None, Tensor | None]:
        if draft.parents is None:
            return None, None
        mask, depth = ancestor_mask(draft.parents, self.decoder.device)
        return depth + start, mask


def fill(decoder: Decoder, cache: KVCache, tokens: Sequence[int]) -> None:
    """Append `tokens` to the cache in chunks, computing no logits."""
    for first in range(0, len(tokens), PREFILL_CHUNK):
        chunk = torch.tensor([list(tokens[first : first + PREFILL_CHUNK])], device=decoder.device)
        decoder.forward(chunk, cache, start=cache.length, logits="none")
        cache.keep(range(chunk.shape[1]))


def _taps(needs: Needs) -> Taps:
    if not needs.residuals and not needs.sublayer_outputs:
        return NO_TAPS
    return Taps(needs.residuals, needs.sublayer_outputs)


def _logits(needs: Needs) -> Literal["all", "none"]:
    return "all" if needs.argmax or needs.logits or needs.last_hidden else "none"


def _result(out: Output, needs: Needs, *, greedy: bool) -> VerifyResult:
    logits = None if out.logits is None else out.logits[0]
    argmax = _checked_argmax(logits) if logits is not None and (greedy or needs.argmax) else None
    if logits is not None and argmax is None:
        _checked_argmax(logits)
    return VerifyResult(
        logits=logits if needs.logits or not greedy else None,
        argmax=argmax,
        last_hidden=out.normed[0] if needs.last_hidden and out.normed is not None else None,
        residuals={index: state[0] for index, state in out.residuals.items()},
        sublayer_outputs={index: state[0] for index, state in out.sublayer_outputs.items()},
    )


def _checked_argmax(logits: Tensor) -> Tensor:
    largest, index = most_likely(logits)
    if not bool(largest.isfinite().all()):
        raise SampleError("the target's logits are NaN or infinite")
    return index


def most_likely(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Largest logit [T] of every row [T, V], and its first index [T]."""
    largest, index = zip(*map(_argmax, few_rows(logits)), strict=True)
    return torch.cat(largest), torch.cat(index)


def few_rows(logits: Tensor) -> tuple[Tensor, ...]:
    """The rows in parts that are quick to work on: a device takes all of them at once, a CPU a few."""
    return logits.split(_TOGETHER) if logits.device.type == "cpu" else (logits,)


def _argmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """In two stages, since a vectorised maximum comes without index."""
    rows, vocab = logits.shape
    if vocab % _BLOCK:
        return logits.max(dim=-1)
    blocks = logits.view(rows, -1, _BLOCK)
    best = blocks.amax(-1).argmax(-1)
    inside = blocks[torch.arange(rows, device=logits.device), best]
    largest, index = inside.max(-1)
    return largest, best * _BLOCK + index
