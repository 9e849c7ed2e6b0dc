"""Many answers at once, with the states that predicted their tokens: how a target makes training data.

Speculative decoding here is batch 1; this is the one place where sequences are decoded side by side, because a product
with many rows costs little more than one with few. A finished sequence gives its place to the next prompt at once, and
keys and values are neither padded nor moved. The library's batched `generate` copies all keys and values in every step
and decodes padding until the longest answer ends, which made it several times slower on a CPU.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.models.attention import GroupedQueryAttention, Rows, rms_norm
from specbench.models.decoder import Decoder
from specbench.types import ModelError

_PROMPT_ROWS = 8192  # of prompts that are read side by side, padding included
_REFILL = 8  # places are given away once a part of them, one in so many, is free

# (attention of a layer, normed states [B, T, d], the layer's buffers) -> branch output [B, T, d]
Attend = Callable[[GroupedQueryAttention, Tensor, dict[str, Tensor]], Tensor]


@dataclass(frozen=True)
class BatchRequest:
    """A prompt, its token budget, and its temperature (0 = greedy, else the whole vocabulary is sampled)."""

    prompt: Sequence[int]
    max_new_tokens: int
    temperature: float = 0.0


@dataclass(frozen=True)
class BatchAnswer:
    """An answer of n tokens, cut at its first stop id (kept), and what predicted them."""

    tokens: tuple[int, ...]
    states: Tensor  # [n, d] half precision, after the final norm
    log_z: Tensor  # [n] float32, log of the sum of exp(logits): logits - log_z are log probabilities


def answer_batch(
    decoder: Decoder,
    requests: Sequence[BatchRequest],
    *,
    stop_ids: Collection[int],
    seed: int,
    size: int = 32,
) -> list[BatchAnswer]:
    """Answers in the order of the requests, `size` of them decoded side by side; repeatable for the same arguments."""
    if decoder.spec.mla is not None:
        raise ModelError("answering in batches does not support models with latent attention")
    capacity = max(len(request.prompt) + request.max_new_tokens for request in requests)
    batch = _Batch(
        decoder, frozenset(stop_ids), torch.Generator().manual_seed(seed), min(size, len(requests)), capacity
    )
    waiting = deque(enumerate(requests))
    answers: dict[int, BatchAnswer] = {}
    with torch.inference_mode():
        while waiting or batch.rows:
            free = batch.size - len(batch.rows)
            if waiting and free >= min(len(waiting), max(1, batch.size // _REFILL)):
                batch.add([waiting.popleft() for _ in range(min(free, len(waiting)))])
            answers |= batch.step()
    return [answers[index] for index in range(len(requests))]


@dataclass
class _Row:
    """One sequence being answered: `length` rows of its cache are filled, `root` is the token after them."""

    index: int
    request: BatchRequest
    length: int
    root: int
    tokens: list[int] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)
    log_z: list[float] = field(default_factory=list)

    def answer(self) -> BatchAnswer:
        return BatchAnswer(tuple(self.tokens), torch.stack(self.states), torch.tensor(self.log_z))


class _Batch:
    """Up to `size` sequences, always the first rows of the buffers: keys and values [size, KV, capacity, D] a layer."""

    def __init__(
        self, decoder: Decoder, stop_ids: frozenset[int], draws: torch.Generator, size: int, capacity: int
    ) -> None:
        self.decoder, self.stop_ids, self.draws, self.size = decoder, stop_ids, draws, size
        self.rows: list[_Row] = []
        self.buffers: list[dict[str, Tensor]] = [
            {
                name: torch.zeros(size, heads, capacity, width, dtype=decoder.dtype, device=decoder.device)
                for name, (heads, width) in layer.attention.buffers.items()
            }
            for layer in decoder.layers
        ]

    def add(self, requests: Sequence[tuple[int, BatchRequest]]) -> None:
        """Read prompts but for their last tokens, straight into the buffers; several in one pass."""
        for group in _side_by_side(requests):
            self._read([request.prompt[:-1] for _, request in group])
            self.rows += [_Row(i, request, len(request.prompt) - 1, request.prompt[-1]) for i, request in group]

    def _read(self, known: Sequence[Sequence[int]]) -> None:
        """Keys and values of prompts, for the rows after those in use. What follows a shorter one is written over."""
        longest, first = max(len(tokens) for tokens in known), len(self.rows)
        if longest == 0:
            return
        decoder = self.decoder
        cos, sin = decoder.first_rotary(longest, decoder.dtype)
        shared = Rows(cos, sin, 0, 0, None, None, longest > 1)

        def attend(attention: GroupedQueryAttention, x: Tensor, buffers: dict[str, Tensor]) -> Tensor:
            q, k, v = (part.transpose(1, 2) for part in attention.project(x, shared))  # [B, heads, T, D]
            buffers["k"][first : first + len(known), :, :longest] = k
            buffers["v"][first : first + len(known), :, :longest] = v
            grouped = attention.heads != attention.kv_heads
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=shared.causal, enable_gqa=grouped)
            return attention.out(mixed.transpose(1, 2).reshape(*x.shape[:2], -1))

        self._through([[*tokens, *[0] * (longest - len(tokens))] for tokens in known], attend)

    def step(self) -> dict[int, BatchAnswer]:
        """One more token for every sequence; gives the answers that are finished, by the index of their request."""
        normed = self._forward()
        logits = self.decoder.head(normed)[:, 0]
        log_z = logits.logsumexp(-1)
        tokens = self._drawn(logits)
        states = normed[:, 0].to("cpu", torch.float16)
        for row, token, state, z in zip(self.rows, tokens, states, log_z.tolist(), strict=True):
            row.length, row.root = row.length + 1, token
            row.tokens.append(token)
            row.states.append(state)
            row.log_z.append(z)
        return self._finished()

    def _forward(self) -> Tensor:
        """The states [B, 1, d] after the final norm that predict each sequence's next token."""
        decoder, count = self.decoder, len(self.rows)
        lengths = torch.tensor([row.length for row in self.rows], device=decoder.device)
        cos, sin = decoder.rotary(lengths, torch.float32)  # [B, 1, D]
        longest = max(row.length for row in self.rows) + 1
        hidden_keys = torch.arange(longest, device=decoder.device) > lengths[:, None]
        bias = torch.zeros(count, 1, 1, longest, dtype=decoder.dtype, device=decoder.device)
        bias.masked_fill_(hidden_keys[:, None, None], float("-inf"))
        shared = Rows(cos[:, None].to(decoder.dtype), sin[:, None].to(decoder.dtype), 0, 0, bias, None, False)
        places = torch.arange(count, device=decoder.device)

        def attend(attention: GroupedQueryAttention, x: Tensor, buffers: dict[str, Tensor]) -> Tensor:
            """Each sequence's query looks at its own keys; the heads of a group share them without a copy."""
            q, k, v = attention.project(x, shared)  # [B, 1, heads, D]
            buffers["k"][places, :, lengths] = k[:, 0]
            buffers["v"][places, :, lengths] = v[:, 0]
            keys, values = (buffers[name][:count, :, :longest] for name in ("k", "v"))
            grouped = q.view(count, attention.kv_heads, -1, attention.width)
            mixed = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=shared.bias)
            return attention.out(mixed.reshape(count, 1, -1))

        return decoder.final_norm(self._through([[row.root] for row in self.rows], attend))

    def _through(self, rows: list[list[int]], attend: Attend) -> Tensor:
        """States [B, T, d] after the last layer of token ids, B rows of T."""
        decoder, eps = self.decoder, self.decoder.spec.norm_eps
        hidden = decoder.embed(torch.tensor(rows, device=decoder.device))
        for layer, buffers in zip(decoder.layers, self.buffers, strict=True):
            assert isinstance(layer.attention, GroupedQueryAttention)  # the other kind was refused
            hidden = hidden + attend(layer.attention, rms_norm(hidden, layer.norms[0], eps), buffers)
            hidden = hidden + layer.mlp(rms_norm(hidden, layer.norms[1], eps))
        return hidden

    def _drawn(self, logits: Tensor) -> list[int]:
        """The next token of every sequence by its own temperature."""
        temperatures = torch.tensor([row.request.temperature for row in self.rows], device=logits.device)
        uniform = torch.rand(len(self.rows), 1, generator=self.draws).to(logits.device)
        best = logits.argmax(-1)
        if not bool(temperatures.any()):
            return best.tolist()
        scaled = logits / temperatures.where(temperatures > 0, 1.0)[:, None]
        cumulative = scaled.softmax(-1).cumsum(-1)
        drawn = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)[:, 0]
        drawn = drawn.clamp_max(logits.shape[-1] - 1)
        return torch.where(temperatures > 0, drawn, best).tolist()

    def _finished(self) -> dict[int, BatchAnswer]:
        """Take out the sequences that ended; the last one moves into the gap, so that the rows stay the first ones."""
        done: dict[int, BatchAnswer] = {}
        for place in reversed(range(len(self.rows))):
            row = self.rows[place]
            if row.tokens[-1] not in self.stop_ids and len(row.tokens) < row.request.max_new_tokens:
                continue
            done[row.index] = row.answer()
            last = self.rows.pop()
            if last is not row:
                self.rows[place] = last
                for layer in self.buffers:
                    for buffer in layer.values():
                        buffer[place, :, : last.length] = buffer[len(self.rows), :, : last.length]
        return done


def _side_by_side(requests: Sequence[tuple[int, BatchRequest]]) -> Iterator[list[tuple[int, BatchRequest]]]:
    """Neighbours, as many as fit into one pass when all are padded to the longest; at least one."""
    group: list[tuple[int, BatchRequest]] = []
    longest = 0
    for numbered in requests:
        longest = max(longest, len(numbered[1].prompt))
        if group and longest * (len(group) + 1) > _PROMPT_ROWS:
            yield group
            group, longest = [], len(numbered[1].prompt)
        group.append(numbered)
    if group:
        yield group
