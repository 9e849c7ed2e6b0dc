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
    repeated for the heads of a group.
    """

    cos: Tensor
    sin: Tensor
    start: int
    prefix: int
    bias: Tensor | None
    grouped_bias: Tensor | None
    causal: bool


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

    def widen_norm(self) -> None:
        """Keep the q/k norm weights in float32."""
        if self.qk_norm is not None:
            self.qk_norm = self.qk_norm.float()

    def __call__(self, x: Tensor, rows: Rows, cache: dict[str, Tensor] | None) -> Tensor:
        """Branch output [B, T, d] for normed x [B, T, d]; with a cache B is 1 and the new rows are written."""
        q, k, v = self.project(x, rows)
        if cache is None:
            mixed = self._attend_batch(q, k, v, rows)
        else:
            keys = self._store(cache["k"], k[0], rows)
            values = self._store(cache["v"], v[0], rows)
            mixed = self._attend_cached(q[0].to(keys.dtype), keys, values, rows)
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

    @staticmethod
    def _store(buffer: Tensor, new: Tensor, rows: Rows) -> Tensor:
        """Write new [T, KV, D] and give what the rows see: [KV, prefix + T, D]."""
        end = rows.start + new.shape[0]
        buffer[:, rows.start : end] = new.transpose(0, 1)
        if rows.prefix == rows.start:
            return buffer[:, :end]
        return torch.cat([buffer[:, : rows.prefix], buffer[:, rows.start : end]], dim=1)

    def _attend_cached(self, q: Tensor, keys: Tensor, values: Tensor, rows: Rows) -> Tensor:
        count, groups = q.shape[0], self.heads // self.kv_heads
        laid_out = q.view(count, self.kv_heads, groups, self.width).permute(1, 2, 0, 3)
        if count <= GROUPED_ROWS and not rows.causal:
            laid_out = laid_out.reshape(1, self.kv_heads, groups * count, self.width)
            mixed = F.scaled_dot_product_attention(laid_out, keys[None], values[None], attn_mask=rows.grouped_bias)
            mixed = mixed.view(self.kv_heads, groups, count, self.width)
        else:
            shape = (self.kv_heads, groups, *keys.shape[1:])
            mixed = F.scaled_dot_product_attention(
                laid_out,
                keys[:, None].expand(shape),
                values[:, None].expand(shape),
                attn_mask=rows.bias,
                is_causal=rows.causal,
            )
        return mixed.permute(2, 0, 1, 3).reshape(1, count, self.heads * self.width)

    def _attend_batch(self, q: Tensor, k: Tensor, v: Tensor, rows: Rows) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=rows.bias, is_causal=rows.causal, enable_gqa=self.heads != self.kv_heads
        )
        return mixed.transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)

    def branches(self, x: Tensor, rows: Rows, cache: dict[str, Tensor]) -> Tensor:
        """Output [B, T, d] of B branches of T causal rows after the same cached prefix; nothing is written."""
        # A CPU multiplies matrices of half-precision numbers an order of magnitude slower than those of float32.
        stored = cache["k"].dtype
        wide = torch.promote_types(stored, torch.float32) if x.device.type == "cpu" else stored
        past_k, past_v = (cache[name][:, : rows.prefix].to(wide) for name in ("k", "v"))
        q, k, v = (part.to(stored).to(wide) for part in self.project(x, rows))  # rounded as the cache rounds
        batch, count, groups = x.shape[0], x.shape[1], self.heads // self.kv_heads
        # Scores are the largest tensor here by far: queries are scaled instead of them, and their two parts are views.
        q = (q * self.width**-0.5).view(batch, count, self.kv_heads, groups, self.width).permute(2, 0, 3, 1, 4)
        k, v = k.permute(2, 0, 1, 3), v.permute(2, 0, 1, 3)  # [KV, B, T, D]
        flat = q.reshape(self.kv_heads, batch * groups * count, self.width)
        shared = flat @ past_k.transpose(1, 2)
        own = q.flatten(2, 3) @ k.transpose(2, 3)
        scores = torch.cat([shared.view(*own.shape[:3], rows.prefix), own], dim=-1)
        hidden = torch.ones(count, count, dtype=torch.bool, device=x.device).triu(1).repeat(groups, 1)
        scores[..., rows.prefix :].masked_fill_(hidden, float("-inf"))
        weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(v.dtype)
        near = weights[..., rows.prefix :] @ v
        far = weights.view(*flat.shape[:2], -1)[..., : rows.prefix] @ past_v
        mixed = (near + far.view_as(near)).view(self.kv_heads, batch, groups, count, self.width)
        return self.out(mixed.permute(1, 3, 0, 2, 4).reshape(batch, count, -1).to(x.dtype))


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
