"""Grouped-query attention over a preallocated cache, for one query, a draft chain, a tree or a whole batch."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.models.linear import Linear
from specbench.models.spec import ModelSpec

# Up to so many rows the heads of a group are laid out as queries of one product (same bits, keys read once).
GROUPED_ROWS = 64


@dataclass(frozen=True)
class Rows:
    """What all layers of one pass share: rotary tables [T, 1, D], where rows go, and who sees whom.

    `bias` is additive, [T, prefix + T] (None: nothing is hidden, or `causal` says it); `grouped_bias` is the same
    repeated for the heads that meet the same keys. `past`: rotary tables [prefix, 1, D] of the cached rows, for
    attention that rotates its keys behind the cache.
    """

    cos: Tensor
    sin: Tensor
    start: int
    prefix: int
    bias: Tensor | None
    grouped_bias: Tensor | None
    causal: bool
    past: tuple[Tensor, Tensor] | None = None


class GroupedQueryAttention:
    """One attention layer with fused q/k/v projection, rotary embedding and optional q/k norm."""

    def __init__(self, spec: ModelSpec, *, dtype: torch.dtype, device: torch.device) -> None:
        self.heads, self.kv_heads, self.width = spec.num_heads, spec.num_kv_heads, spec.head_dim
        self.eps = spec.norm_eps
        rows = (self.heads + 2 * self.kv_heads) * self.width
        new = functools.partial(torch.empty, dtype=dtype, device=device)
        self.qkv = Linear(new(rows, spec.hidden_size), new(rows) if spec.qkv_bias else None)
        self.out = Linear(
            new(spec.hidden_size, self.heads * self.width),
            new(spec.hidden_size) if spec.o_bias else None,
        )
        self.qk_norm = new(self.heads + self.kv_heads, self.width) if spec.qk_norm else None

    @property
    def buffers(self) -> dict[str, tuple[int, int]]:
        return {"k": (self.kv_heads, self.width), "v": (self.kv_heads, self.width)}

    def linears(self) -> list[Linear]:
        return [self.qkv, self.out]

    def slots(self, prefix: str) -> dict[str, Tensor]:
        """Library tensor names under `prefix` (``...self_attn.``) -> views into the fused weights."""
        sizes = [self.heads * self.width, self.kv_heads * self.width, self.kv_heads * self.width]
        named: dict[str, Tensor] = {}
        for tensor, suffix in ((self.qkv.weight, "weight"), (self.qkv.bias, "bias")):
            if tensor is not None:
                parts = tensor.split(sizes)
                named |= {f"{prefix}{name}_proj.{suffix}": part for name, part in zip("qkv", parts, strict=True)}
        for tensor, suffix in ((self.out.weight, "weight"), (self.out.bias, "bias")):
            if tensor is not None:
                named[f"{prefix}o_proj.{suffix}"] = tensor
        if self.qk_norm is not None:
            # One row a head shares storage: the loader fills row 0 of each part, `finish` repeats it.
            named[f"{prefix}q_norm.weight"] = self.qk_norm[0]
            named[f"{prefix}k_norm.weight"] = self.qk_norm[self.heads]
        return named

    def finish(self) -> None:
        """Spread the q/k norm weights over the heads after loading."""
        if self.qk_norm is not None:
            self.qk_norm[: self.heads] = self.qk_norm[0].clone()
            self.qk_norm[self.heads :] = self.qk_norm[self.heads].clone()

    def widen(self) -> None:
        """Keep what is not packed, the q/k norm weights, in float32."""
        if self.qk_norm is not None:
            self.qk_norm = self.qk_norm.float()

    def __call__(self, x: Tensor, rows: Rows, cache: dict[str, Tensor] | None) -> Tensor:
        """Branch output [B, T, d] for normed x [B, T, d]; with a cache B is 1 and the new rows are written."""
        q, k, v = self.project(x, rows)
        if cache is None:
            mixed = self._attend_batch(q, k, v, rows)
        else:
            keys = store(cache["k"], k[0].transpose(0, 1), rows)
            values = store(cache["v"], v[0].transpose(0, 1), rows)
            mixed = attend_cached(q[0].to(keys.dtype), keys, values, rows).flatten(1)[None]
        return self.out(mixed)

    def project(self, x: Tensor, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [B, T, H, D] and keys [B, T, KV, D], and values [B, T, KV, D]."""
        fused = self.qkv(x).view(*x.shape[:2], -1, self.width)
        qk, v = fused.split([self.heads + self.kv_heads, self.kv_heads], dim=2)
        if self.qk_norm is not None:
            qk = rms_norm(qk, self.qk_norm, self.eps)
        qk = rotate(qk, rows.cos, rows.sin)
        q, k = qk.split([self.heads, self.kv_heads], dim=2)
        return q, k, v

    def _attend_batch(self, q: Tensor, k: Tensor, v: Tensor, rows: Rows) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=rows.bias, is_causal=rows.causal, enable_gqa=self.heads != self.kv_heads
        )
        return mixed.transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)

    def branches(self, x: Tensor, rows: Rows, cache: dict[str, Tensor]) -> Tensor:
        """Output [B, T, d] of B branches of T causal rows after the same cached prefix; nothing is written."""
        stored = cache["k"].dtype
        wide = score_dtype(x, stored)
        past_k, past_v = (cache[name][:, : rows.prefix].to(wide) for name in ("k", "v"))
        q, k, v = (part.to(stored).to(wide) for part in self.project(x, rows))  # rounded as the cache rounds
        mixed = attend_branches(q * self.width**-0.5, (k, v), (past_k, past_v))
        return self.out(mixed.flatten(2).to(x.dtype))


def store(buffer: Tensor, new: Tensor, rows: Rows) -> Tensor:
    """Write new [heads, T, width] into a buffer of the cache and give what the rows see: [heads, prefix + T, width]."""
    end = rows.start + new.shape[1]
    buffer[:, rows.start : end] = new
    if rows.prefix == rows.start:
        return buffer[:, :end]
    return torch.cat([buffer[:, : rows.prefix], buffer[:, rows.start : end]], dim=1)


def attend_cached(q: Tensor, keys: Tensor, values: Tensor, rows: Rows, *, scale: float | None = None) -> Tensor:
    """What queries [T, H, D] read from keys [KV, S, D] and values [KV, S, E]: [T, H, E]; scale 1 / sqrt(D) or given."""
    count, kv_heads, groups = q.shape[0], keys.shape[0], q.shape[1] // keys.shape[0]
    laid_out = q.view(count, kv_heads, groups, -1).permute(1, 2, 0, 3)
    if count <= GROUPED_ROWS and not rows.causal:
        laid_out = laid_out.reshape(1, kv_heads, groups * count, -1)
        mixed = F.scaled_dot_product_attention(
            laid_out, keys[None], values[None], attn_mask=rows.grouped_bias, scale=scale
        )
        mixed = mixed.view(kv_heads, groups, count, -1)
    else:
        mixed = F.scaled_dot_product_attention(
            laid_out,
            keys[:, None].expand(-1, groups, -1, -1),
            values[:, None].expand(-1, groups, -1, -1),
            attn_mask=rows.bias,
            is_causal=rows.causal,
            scale=scale,
        )
    return mixed.permute(2, 0, 1, 3).reshape(count, kv_heads * groups, -1)


def attend_branches(q: Tensor, own: tuple[Tensor, Tensor], past: tuple[Tensor, Tensor]) -> Tensor:
    """What scaled queries [B, T, H, D] read from their branch's and the shared past's keys and values: [B, T, H, E].

    `own`: [B, T, KV, D] and [B, T, KV, E], causal; `past`: [KV, P, D] and [KV, P, E], seen by every row.
    """
    past_k, past_v = past
    batch, count, kv_heads, prefix = *q.shape[:2], *past_k.shape[:2]
    groups = q.shape[2] // kv_heads
    # Scores are the largest tensor here by far: queries are scaled instead of them, and their two parts are views.
    q = q.view(batch, count, kv_heads, groups, -1).permute(2, 0, 3, 1, 4)
    k, v = (part.permute(2, 0, 1, 3) for part in own)  # [KV, B, T, D]
    flat = q.reshape(kv_heads, batch * groups * count, -1)
    shared = flat @ past_k.transpose(1, 2)
    near = q.flatten(2, 3) @ k.transpose(2, 3)
    scores = torch.cat([shared.view(*near.shape[:3], prefix), near], dim=-1)
    hidden = torch.ones(count, count, dtype=torch.bool, device=q.device).triu(1).repeat(groups, 1)
    scores[..., prefix:].masked_fill_(hidden, float("-inf"))
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(v.dtype)
    from_own = weights[..., prefix:] @ v
    from_past = weights.view(*flat.shape[:2], -1)[..., :prefix] @ past_v
    mixed = (from_own + from_past.view_as(from_own)).view(kv_heads, batch, groups, count, -1)
    return mixed.permute(1, 3, 0, 2, 4).reshape(batch, count, kv_heads * groups, -1)


def score_dtype(x: Tensor, stored: torch.dtype) -> torch.dtype:
    """The dtype that scores of cached numbers are best computed in on the device of x.

    A CPU multiplies matrices of half-precision numbers an order of magnitude slower than those of float32.
    """
    return torch.promote_types(stored, torch.float32) if x.device.type == "cpu" else stored


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [..., T, heads, D]; `sin` carries the sign of the half it multiplies."""
    low, high = x.chunk(2, dim=-1)
    return torch.addcmul(x * cos, torch.cat([high, low], dim=-1), sin)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis, computed in at least float32."""
    if x.dtype == weight.dtype == torch.float32 and weight.dim() == 1:
        return F.rms_norm(x, weight.shape, weight, eps)
    wide = x if x.dtype == torch.float64 else x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * weight
