"""A decoder-only transformer with control over every sublayer, written to be read.

Sublayers are numbered b = 0..2L-1: even = attention of layer b // 2, odd = MLP of layer b // 2. Each includes its own
norm and its residual add. Logits equal the library's; `tests/models` holds the parity tests.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.models.attention import GROUPED_ROWS, Rows, rms_norm
from specbench.models.kv_cache import KVCache
from specbench.models.layer import Layer
from specbench.models.linear import Linear, choose_path
from specbench.models.rope import inverse_frequencies
from specbench.models.spec import ModelSpec
from specbench.types import Resume

_CAPACITY_STEP = 256


@dataclass(frozen=True)
class Taps:
    """Which intermediate states a pass hands out: the residual stream after a sublayer (-1 = the embedding), or a
    sublayer's output before the residual add."""

    residuals: Collection[int] = ()
    sublayer_outputs: Collection[int] = ()


NO_TAPS = Taps()


@dataclass(frozen=True)
class Output:
    """States of one pass over T rows: `hidden` is the residual stream at the end, `normed` after the final norm."""

    hidden: Tensor  # [B, T, d]
    normed: Tensor | None = None  # [B, T or 1, d]
    logits: Tensor | None = None  # [B, T or 1, V]
    residuals: Mapping[int, Tensor] = field(default_factory=dict)  # sublayer -> [B, T, d]
    sublayer_outputs: Mapping[int, Tensor] = field(default_factory=dict)  # sublayer -> [B, T, d]


class Decoder:
    """The model: empty until a loader has filled `slots()` and called `finish()`."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        embedding: Tensor | None = None,  # [V, d] of another model, shared instead of an own one
    ) -> None:
        self.spec, self.dtype, self.device = spec, dtype, torch.device(device)
        new = functools.partial(torch.empty, dtype=dtype, device=self.device)
        self.embedding = new(spec.vocab_size, spec.hidden_size) if embedding is None else embedding
        self.layers = [Layer(spec, index, dtype=dtype, device=self.device) for index in range(spec.num_layers)]
        self.norm = new(spec.hidden_size)
        head = self.embedding if spec.tied_embeddings else torch.empty_like(self.embedding)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.head = Linear(head, out_dtype=wide)
        self.linear_path = "library"
        frequencies, self._rope_scale = inverse_frequencies(spec.rope, spec.head_dim, spec.max_positions)
        self._frequencies = frequencies.to(self.device)
        self._tables: dict[torch.dtype, tuple[Tensor, Tensor]] = {}  # rotary tables of the first positions

    # ---- weights

    def slots(self) -> dict[str, Tensor]:
        """Library tensor name -> the view that a loader copies into; the head is absent when tied."""
        named = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.norm}
        for index, layer in enumerate(self.layers):
            named |= layer.slots(f"model.layers.{index}.")
        if not self.spec.tied_embeddings:
            assert self.head.weight is not None
            named["lm_head.weight"] = self.head.weight
        return named

    def finish(self, path: str = "auto") -> Decoder:
        """Make loaded weights ready: `path` is library, packed or reordered (inference only), or auto."""
        for layer in self.layers:
            layer.attention.finish()
        self.linear_path = choose_path(self.dtype, self.device) if path == "auto" else path
        if self.linear_path == "packed":
            self._widen_norms()
        for linear in [self.head, *self.linears()[:-1]]:  # the largest while the least else is moved
            linear.prepare(self.linear_path)
        return self

    def _widen_norms(self) -> None:
        self.norm = self.norm.float()
        for layer in self.layers:
            layer.norms = [weight.float() for weight in layer.norms]
            layer.attention.widen()

    def linears(self) -> list[Linear]:
        return [linear for layer in self.layers for linear in layer.linears()] + [self.head]

    @property
    def num_sublayers(self) -> int:
        return 2 * self.spec.num_layers

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache for `capacity` tokens."""
        shapes = [layer.attention.buffers for layer in self.layers]
        return KVCache(shapes, capacity=capacity, dtype=self.dtype, device=self.device)

    def reserve(self, cache: KVCache | None, capacity: int) -> KVCache:
        """`cache` emptied when it holds `capacity` tokens, else a new one, rounded up so that neighbours share it."""
        if cache is None or cache.capacity < capacity:
            return self.new_cache(-(-capacity // _CAPACITY_STEP) * _CAPACITY_STEP)
        cache.truncate(0)
        return cache

    # ---- passes

    def forward(
        self,
        inputs: Tensor,
        cache: KVCache | None = None,
        *,
        start: int = 0,
        prefix: int | None = None,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        layers: tuple[int, int] | None = None,
        skip: Collection[int] = (),
        resume: Resume | None = None,
        taps: Taps = NO_TAPS,
        logits: Literal["all", "last", "none"] = "all",
    ) -> Output:
        """Run rows through layers; see the module for sublayer numbers.

        `inputs`: ids [B, T] or hidden [B, T, d]. `start`: first cache slot written. `prefix` <= start: leading cache
        rows that every new row sees. `positions` [T]: rotary positions (default start..). `mask` [T, T] bool: who sees
        whom among the new rows (default causal). `layers`: half-open range. `skip`: sublayers left out. `resume`: the
        first rows enter at a later layer; taps below it hold only the other rows. Without a cache any B and autograd
        work; with one B is 1 and `cache.length` is left to the caller.
        """
        first, last = layers or (0, self.spec.num_layers)
        place = (start, start if prefix is None else prefix)
        seen = _Seen(taps)
        if resume is not None:
            inputs = self._catch_up(inputs, cache, resume, start=start, skip=skip, seen=seen)
            first = resume.layer
        hidden = self.embed(inputs) if inputs.dim() == 2 else inputs
        as_stored = cache is not None and self.spec.mla is None
        rows = self._rows(hidden, place, positions, mask, scores=self.dtype if as_stored else hidden.dtype)
        seen.residual(2 * first - 1, hidden)
        for index in range(first, last):
            buffers = None if cache is None else cache.layers[index]
            if 2 * index not in skip:
                hidden = seen.add(2 * index, hidden, self._attention(index, hidden, rows, buffers))
            if 2 * index + 1 not in skip:
                hidden = seen.add(2 * index + 1, hidden, self._mlp(index, hidden))
        if logits == "none":
            return Output(hidden, residuals=seen.residuals, sublayer_outputs=seen.outputs)
        normed = self.final_norm(hidden if logits == "all" else hidden[:, -1:])
        return Output(hidden, normed, self.head(normed), seen.residuals, seen.outputs)

    def sublayer(
        self,
        index: int,
        hidden: Tensor,
        cache: KVCache,
        start: int,
        prefix: int | None = None,
        *,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Output [B, T, d] of sublayer `index`, before the residual add, of B branches that share a cached prefix.

        Branches are causal chains of T rows at positions start.. that see `prefix` (default start) cache rows and
        their own rows only. Nothing is written.
        """
        layer = self.layers[index // 2]
        if index % 2:
            return layer.mlp(self._normed(index, hidden))
        place = (start, start if prefix is None else prefix)
        rows = self._rows(hidden, place, positions, None, scores=self.dtype)
        return layer.attention.branches(self._normed(index, hidden), rows, cache.layers[index // 2])

    def embed(self, ids: Tensor) -> Tensor:
        """Embeddings of ids, in the dtype of the residual stream: float32 between packed products."""
        states = F.embedding(ids, self.embedding)
        return states.float() if self.linear_path == "packed" else states

    def final_norm(self, hidden: Tensor) -> Tensor:
        return rms_norm(hidden, self.norm, self.spec.norm_eps)

    def _normed(self, index: int, hidden: Tensor) -> Tensor:
        return rms_norm(hidden, self.layers[index // 2].norms[index % 2], self.spec.norm_eps)

    def _attention(self, index: int, hidden: Tensor, rows: Rows, cache: dict[str, Tensor] | None) -> Tensor:
        return self.layers[index].attention(self._normed(2 * index, hidden), rows, cache)

    def _mlp(self, index: int, hidden: Tensor) -> Tensor:
        return self.layers[index].mlp(self._normed(2 * index + 1, hidden))

    def _catch_up(
        self,
        inputs: Tensor,
        cache: KVCache | None,
        resume: Resume,
        *,
        start: int,
        skip: Collection[int],
        seen: _Seen,
    ) -> Tensor:
        """Bring the rows after the resumed ones to the layer where those wait: hidden [1, T, d]."""
        done, below = resume.hidden.shape[0], (0, resume.layer)
        if done == inputs.shape[1]:
            return resume.hidden[None]
        behind = self.forward(
            inputs[:, done:], cache, start=start + done, layers=below, skip=skip, taps=seen.taps, logits="none"
        )
        seen.residuals |= behind.residuals
        seen.outputs |= behind.sublayer_outputs
        return torch.cat([resume.hidden[None], behind.hidden], dim=1)

    def chain_rows(self, hidden: Tensor, start: int) -> Rows:
        """What attention layers need to read rows [1, T, d] that follow `start` cached ones as a chain."""
        return self._rows(hidden, (start, start), None, None, scores=self.dtype)

    def batch_rows(self, hidden: Tensor) -> Rows:
        """What attention layers need to read whole sequences [B, T, d] without a cache."""
        return self._rows(hidden, (0, 0), None, None, scores=hidden.dtype)

    def _rows(
        self,
        hidden: Tensor,
        place: tuple[int, int],
        positions: Tensor | None,
        mask: Tensor | None,
        *,
        scores: torch.dtype,
    ) -> Rows:
        """What the layers of a pass share; `scores` is the dtype that queries and keys meet in."""
        start, prefix = place
        count = hidden.shape[1]
        if positions is None:
            cos, sin = (table[start:] for table in self.first_rotary(start + count, hidden.dtype))
        else:
            cos, sin = self.rotary(positions, hidden.dtype)
        causal = mask is None and prefix == 0 and count > 1
        bias = None if causal or (count == 1 and mask is None) else self._bias(count, prefix, mask, scores)
        small = bias is not None and count <= GROUPED_ROWS
        grouped = bias.repeat(self.spec.heads_of_a_key, 1) if bias is not None and small else None
        return Rows(cos, sin, start, prefix, bias, grouped, causal, self._past(prefix, hidden.dtype))

    def _past(self, prefix: int, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
        if self.spec.mla is None or self.spec.mla.form != "svd":
            return None
        return self.first_rotary(prefix, dtype)  # committed rows lie at their positions

    def _bias(self, count: int, prefix: int, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
        if mask is None:
            return F.pad(_causal_bias(count, dtype, self.device), (prefix, 0))
        bias = torch.zeros(count, prefix + count, dtype=dtype, device=self.device)
        bias[:, prefix:].masked_fill_(~mask, float("-inf"))
        return bias

    def rotary(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Rotary tables [T, 1, D] of positions [T]."""
        angles = positions[:, None].float() * self._frequencies
        cos, sin = angles.cos() * self._rope_scale, angles.sin() * self._rope_scale
        return (
            torch.cat([cos, cos], dim=-1)[:, None].to(dtype),
            torch.cat([-sin, sin], dim=-1)[:, None].to(dtype),
        )

    def first_rotary(self, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The rotary tables of positions 0..count - 1: views of what is kept, which doubles when it does not reach."""
        found = self._tables.get(dtype)
        if found is None or len(found[0]) < count:
            room = max(_CAPACITY_STEP, 1 << (count - 1).bit_length())
            with torch.inference_mode(False), torch.no_grad():  # training may meet them later
                found = self.rotary(torch.arange(room, device=self.device), dtype)
            self._tables[dtype] = found
        cos, sin = found
        return cos[:count], sin[:count]


class _Seen:
    """Collects the states that taps ask for."""

    def __init__(self, taps: Taps) -> None:
        self.taps = taps
        self.residuals: dict[int, Tensor] = {}
        self.outputs: dict[int, Tensor] = {}

    def residual(self, index: int, hidden: Tensor) -> None:
        if index in self.taps.residuals:
            self.residuals[index] = hidden

    def add(self, index: int, hidden: Tensor, output: Tensor) -> Tensor:
        if index in self.taps.sublayer_outputs:
            self.outputs[index] = output
        hidden = hidden + output
        self.residual(index, hidden)
        return hidden


@functools.lru_cache(maxsize=32)
def _causal_bias(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Additive [count, count]: no row sees a later one."""
    with torch.inference_mode(False):
        return torch.full((count, count), float("-inf"), dtype=dtype, device=device).triu(1)


@functools.lru_cache(maxsize=256)  # tree shapes repeat from step to step
def ancestor_mask(parents: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Visibility [T, T] and depth [T] of a root row followed by a tree (`parents`: -1 = the root), T = k + 1."""
    count = len(parents) + 1
    seen, depth = np.zeros((count, count), dtype=np.bool_), np.zeros(count, dtype=np.int64)
    seen[0, 0] = True
    for row, parent in enumerate(parents, start=1):
        seen[row] = seen[parent + 1]
        seen[row, row] = True
        depth[row] = depth[parent + 1] + 1
    return torch.from_numpy(seen).to(device), torch.from_numpy(depth).to(device)
