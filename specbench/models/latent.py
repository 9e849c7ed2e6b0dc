"""Multi-head latent attention: keys and values are read out of one narrow latent a token, which is all that is cached.

Two forms give the same output. Expanded: keys and values of every head are computed from the cached latents; the path
of prefill and training, where many queries share that work. Absorbed: the up-projection of the keys moves to the few
queries of a decode step and that of the values behind the sum, so that all heads read the latents themselves.
(DeepSeek-V2, arXiv 2405.04434.)
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.models.attention import Rows, attend_branches, attend_cached, rms_norm, rotate, score_dtype, store
from specbench.models.linear import Linear
from specbench.models.spec import ModelSpec
from specbench.types import ModelError

# Name of a cache buffer -> its rows [B, heads, T, width].
Entry = dict[str, Tensor]


class LatentAttention:
    """One layer of latent attention of either form of `LatentSpec`, with one product for all that the input feeds.

    Symbols in comments: H query heads, K key heads of the base, d head_dim; r rank; N rotated keys of width e; n width
    of a head's key without rotary embedding.
    """

    def __init__(self, spec: ModelSpec, layer: int, *, dtype: torch.dtype, device: torch.device) -> None:
        assert spec.mla is not None
        self.mla, self.rank, self.eps = spec.mla, spec.mla.ranks[layer], spec.norm_eps
        self.heads, self.kv_heads, self.width = spec.num_heads, spec.num_kv_heads, spec.head_dim
        new = functools.partial(torch.empty, dtype=dtype, device=device)
        self._sizes = self._input_sizes()
        self._biased = [name for name in self._sizes if name != "kv_down" or self.mla.bias_mode == "latent"]
        rows = sum(self._sizes.values())
        bias = torch.zeros(rows, dtype=dtype, device=device) if spec.qkv_bias else None
        self.inputs = Linear(new(rows, spec.hidden_size), bias)
        exact = self.mla.bias_mode == "exact"
        self.k_up = new(self.mla.key_heads, self.mla.nope_dim, self.rank)
        self.v_up = new(self.heads, self.width, self.rank)
        self.k_up_bias = new(*self.k_up.shape[:2]) if exact else None
        self.v_up_bias = new(*self.v_up.shape[:2]) if exact else None
        self.out = Linear(
            new(spec.hidden_size, self.heads * self.width), new(spec.hidden_size) if spec.o_bias else None
        )
        self.q_norm = new(self.width) if self.mla.qk_norm != "none" else None
        self.k_norm = new(self.width) if self.mla.qk_norm == "exact" else None
        self.rope_index = torch.zeros(self.mla.rope_heads, self.mla.rope_dim // 2, dtype=torch.int64, device=device)

    def _input_sizes(self) -> dict[str, int]:
        """Rows of the fused input projection, by the name of the part."""
        if self.mla.form == "svd":
            return {"q_proj": self.heads * self.width, "kv_down": self.rank}
        return {
            "q_nope": self.heads * self.mla.nope_dim,
            "q_rope": self.heads * self.mla.rope_dim,
            "kv_down": self.rank,
            "k_rope": self.mla.rope_heads * self.mla.rope_dim,
        }

    @property
    def buffers(self) -> dict[str, tuple[int, int]]:
        latent = {"latent": (1, self.rank + self.mla.rope_heads * self.mla.rope_dim)}
        return latent | ({"scale": (self.kv_heads, 1)} if self.mla.caches_scales else {})

    # ---- weights

    def linears(self) -> list[Linear]:
        return [self.inputs, self.out]

    def parts(self) -> dict[str, Tensor]:
        """The weights and biases of the projections, as stored: name (``q_nope.weight``, ...) -> view.

        Parts without rows are left out. Raises ModelError for packed weights.
        """
        if self.inputs.weight is None or self.out.weight is None:
            raise ModelError("the parts of an attention whose weights are packed for inference cannot be read")
        named: dict[str, Tensor | None] = {"o_proj.weight": self.out.weight, "o_proj.bias": self.out.bias}
        sizes = list(self._sizes.values())
        for name, part in zip(self._sizes, self.inputs.weight.split(sizes), strict=True):
            named[f"{name}.weight"] = part
        if self.inputs.bias is not None:
            split = dict(zip(self._sizes, self.inputs.bias.split(sizes), strict=True))
            named |= {f"{name}.bias": split[name] for name in self._biased}
        for name, weight, bias in (
            ("k_up", self.k_up, self.k_up_bias),
            ("v_up", self.v_up, self.v_up_bias),
        ):
            named[f"{name}.weight"] = weight.flatten(0, 1)
            named[f"{name}.bias"] = None if bias is None else bias.flatten()
        return {name: part for name, part in named.items() if part is not None and part.numel()}

    def use(self, parts: Mapping[str, Tensor]) -> None:
        """Compute with these parts from now on (others stay); gradients reach them through what is computed.

        Raises ModelError for a name that is no part.
        """
        held = {name: part.detach() for name, part in self.parts().items()}
        unknown = sorted(parts.keys() - held.keys())
        if unknown:
            raise ModelError(f"{', '.join(unknown)}: no part of this attention; there are: {', '.join(held)}")
        held |= parts
        self.inputs.weight = torch.cat([held[f"{name}.weight"] for name, size in self._sizes.items() if size])
        if self.inputs.bias is not None:
            rest = self.inputs.bias.detach().split(list(self._sizes.values()))  # zeros where a part has no bias
            biases = dict(zip(self._sizes, rest, strict=True))
            self.inputs.bias = torch.cat([held.get(f"{name}.bias", biases[name]) for name in self._sizes])
        for name in ("k_up", "v_up"):
            for own, suffix in ((name, "weight"), (f"{name}_bias", "bias")):
                if f"{name}.{suffix}" in held:
                    setattr(self, own, held[f"{name}.{suffix}"].view_as(getattr(self, own)))
        self.out.weight, self.out.bias = held["o_proj.weight"], held.get("o_proj.bias")

    def slots(self, prefix: str) -> dict[str, Tensor]:
        """Stored tensor names under `prefix` (``...self_attn.``) -> what a loader copies into."""
        named = {f"{prefix}{name}": part for name, part in self.parts().items()}
        for name, norm in (("q_norm", self.q_norm), ("k_norm", self.k_norm)):
            if norm is not None:
                named[f"{prefix}{name}.weight"] = norm
        if self.rope_index.numel():
            named[f"{prefix}rope_index"] = self.rope_index
        return named

    def finish(self) -> None:
        """Derive from the loaded tensors what passes read; raises ModelError for pairs that the base does not have."""
        pairs = self.width // 2
        if self.rope_index.numel() and not (0 <= int(self.rope_index.min()) <= int(self.rope_index.max()) < pairs):
            raise ModelError(f"rope_index must hold numbers from 0 to {pairs - 1}, the rotary pairs of a head")
        if self.q_norm is not None and any(len(set(turned)) < len(turned) for turned in self.rope_index.tolist()):
            raise ModelError("rope_index names a pair of a normed head twice")
        self._turned = torch.cat([self.rope_index, self.rope_index + pairs], dim=-1)  # [N, e]
        self._slot = torch.eye(max(self.mla.rope_heads, 1), dtype=self.v_up.dtype, device=self.v_up.device)
        self._slot = self._slot.repeat_interleave(self.heads // self._slot.shape[0], 0)[..., None]  # [H, N, 1]
        self._q_weight = self._spread_norm(self.q_norm, self.heads)
        self._k_weight = self._spread_norm(self.k_norm, self.kv_heads)

    def _spread_norm(self, weight: Tensor | None, heads: int) -> Tensor | None:
        """The norm's weight of every head in the order of its parts: [heads, d], without rotary embedding first."""
        if weight is None or self.mla.form == "svd":
            return weight
        rest = [sorted(set(range(self.width)) - set(turned)) for turned in self._turned.tolist()]
        order = torch.cat([torch.tensor(rest, dtype=torch.int64, device=weight.device), self._turned], dim=-1)  # [N, d]
        return weight[order].repeat_interleave(heads // order.shape[0], 0)

    def widen(self) -> None:
        """Keep what is not packed in float32."""
        self.k_up, self.v_up, self._slot = self.k_up.float(), self.v_up.float(), self._slot.float()
        for name in ("k_up_bias", "v_up_bias", "_q_weight", "_k_weight"):
            held = getattr(self, name)
            setattr(self, name, None if held is None else held.float())

    # ---- passes

    def __call__(self, x: Tensor, rows: Rows, cache: dict[str, Tensor] | None) -> Tensor:
        """Branch output [B, T, d] for normed x [B, T, d]; with a cache B is 1 and the new rows are written."""
        q, new = self._project(x, rows)
        if cache is None:
            return self.out(self._expanded(q, new, rows))
        seen = {name: store(cache[name], part[0], rows).to(q.dtype)[None] for name, part in new.items()}
        if self.mla.form == "split" and x.shape[1] <= self.mla.absorb_rows:
            return self.out(self._absorbed(q, seen, rows))
        return self.out(self._expanded(q, seen, rows))

    def keys_values(self, x: Tensor, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """What x [B, T, d] gives a reader, in form split: keys without [B, T, key_heads, n] and with [B, T, N, e]
        rotary embedding, and values [B, T, H, d]."""
        _, new = self._project(x, rows)
        latent, turned = self._latent_and_turned(new)
        return self._content(latent, new), turned, self._values(latent)

    def branches(self, x: Tensor, rows: Rows, cache: dict[str, Tensor]) -> Tensor:
        """Output [B, T, d] of B branches of T causal rows after the same cached prefix; nothing is written."""
        q, new = self._project(x, rows)
        stored = cache["latent"].dtype
        wide = score_dtype(x, stored)
        new = {name: part.to(stored).to(wide) for name, part in new.items()}  # rounded as the cache rounds
        past = {name: cache[name][None, :, : rows.prefix].to(wide) for name in new}
        if self.mla.form == "split":
            q, own, before = self._absorb(q.to(wide)), self._compact(new), self._compact(past)
        else:
            assert rows.past is not None
            q, own = q.to(wide), self._expand(new, (rows.cos, rows.sin))
            before = self._expand(past, rows.past)
        near = (own[0].transpose(1, 2), own[1].transpose(1, 2))
        read = attend_branches(q * self.mla.scaling, near, (before[0][0], before[1][0]))
        if self.mla.form == "split":
            read = self._up(read)
        return self.out(read.flatten(2).to(x.dtype))

    def _project(self, x: Tensor, rows: Rows) -> tuple[Tensor, Entry]:
        """Queries [B, T, H, n + e], the rotated part last (form svd: all is rotated), and the rows to cache."""
        fused = self.inputs(x).split(list(self._sizes.values()), dim=-1)
        if self.mla.form == "svd":
            q = self._normed_queries(fused[0].unflatten(-1, (self.heads, self.width)))
            return rotate(q, rows.cos, rows.sin), {"latent": fused[1][:, None]}
        nope, rope, latent, turned = fused
        nope = nope.view(*x.shape[:2], self.heads, self.mla.nope_dim)
        q = self._normed_queries(torch.cat([nope, rope.unflatten(-1, (self.heads, -1))], dim=-1))
        nope, rope = q.split([self.mla.nope_dim, self.mla.rope_dim], dim=-1)
        cos, sin = rows.cos[:, 0, self._turned], rows.sin[:, 0, self._turned]  # [T, N, e]
        rope = rotate(rope.unflatten(2, (self.mla.rope_heads, -1)), cos[:, :, None], sin[:, :, None]).flatten(2, 3)
        turned = turned.unflatten(-1, (self.mla.rope_heads, -1))
        scale = self._key_scale(latent, turned)
        if scale is not None:
            assert self._k_weight is not None
            turned = turned * scale.to(x.dtype) * self._k_weight[:, self.mla.nope_dim :]
        turned = rotate(turned, cos, sin)
        new = {"latent": torch.cat([latent, turned.flatten(2)], dim=-1)[:, None]}
        return torch.cat([nope, rope], dim=-1), new | ({} if scale is None else {"scale": scale.transpose(1, 2)})

    def _normed_queries(self, q: Tensor) -> Tensor:
        return q if self._q_weight is None else rms_norm(q, self._q_weight, self.eps)

    def _key_scale(self, latent: Tensor, turned: Tensor) -> Tensor | None:
        """What the exact key norm divides by, inverted: [B, T, K, 1] for latents [B, T, r] and keys [B, T, K, e]."""
        if not self.mla.caches_scales:
            return None
        content = self._raw_content(latent)
        wide = torch.promote_types(latent.dtype, torch.float32)
        squares = content.to(wide).square().sum(-1) + turned.to(wide).square().sum(-1)
        return torch.rsqrt(squares / self.width + self.eps)[..., None].to(latent.dtype)

    # ---- expanded: keys and values of every head

    def _expanded(self, q: Tensor, seen: Entry, rows: Rows) -> Tensor:
        """What queries [B, T, H, n + e] read from cache rows [B, ., S, .]: [B, T, H * d]."""
        tables = (rows.cos, rows.sin)
        if rows.past is not None:
            tables = (torch.cat([rows.past[0], rows.cos]), torch.cat([rows.past[1], rows.sin]))
        keys, values = self._expand(seen, tables)
        mixed = F.scaled_dot_product_attention(
            q.transpose(1, 2), keys, values, attn_mask=rows.bias, is_causal=rows.causal, scale=self.mla.scaling
        )
        return mixed.transpose(1, 2).flatten(2)

    def _expand(self, seen: Entry, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Keys [B, H, S, n + e] and values [B, H, S, d]; `tables` turn the keys of form svd."""
        if self.mla.form == "svd":
            latent = seen["latent"][:, 0]
            keys = self._raw_content(latent)
            keys = keys if self._k_weight is None else rms_norm(keys, self._k_weight, self.eps)
            keys = self._for_heads(rotate(keys, *(table.to(keys.dtype) for table in tables)))
        else:
            latent, turned = self._latent_and_turned(seen)
            keys = torch.cat([self._for_heads(self._content(latent, seen)), self._for_heads(turned)], dim=-1)
        return keys.transpose(1, 2), self._values(latent).transpose(1, 2)

    def _latent_and_turned(self, seen: Entry) -> tuple[Tensor, Tensor]:
        latent, turned = seen["latent"][:, 0].split([self.rank, self.mla.rope_heads * self.mla.rope_dim], dim=-1)
        return latent, turned.unflatten(-1, (self.mla.rope_heads, self.mla.rope_dim))

    def _raw_content(self, latent: Tensor) -> Tensor:
        return _read(latent, self.k_up, self.k_up_bias)

    def _content(self, latent: Tensor, seen: Entry) -> Tensor:
        """Keys without rotary embedding [B, S, key_heads, n] of latents [B, S, r], normed where the base norms."""
        content = self._raw_content(latent)
        if "scale" not in seen:
            return content
        assert self._k_weight is not None
        return content * seen["scale"].transpose(1, 2) * self._k_weight[:, : self.mla.nope_dim]

    def _values(self, latent: Tensor) -> Tensor:
        return _read(latent, self.v_up, self.v_up_bias)

    def _for_heads(self, x: Tensor) -> Tensor:
        """[B, S, heads, width] repeated for the H query heads."""
        return x if x.shape[2] == self.heads else x.repeat_interleave(self.heads // x.shape[2], dim=2)

    # ---- absorbed: the heads read the latents

    def _absorbed(self, q: Tensor, seen: Entry, rows: Rows) -> Tensor:
        keys, values = self._compact(seen)
        read = attend_cached(self._absorb(q)[0], keys[0], values[0], rows, scale=self.mla.scaling)
        return self._up(read).flatten(1)[None]

    def _absorb(self, q: Tensor) -> Tensor:
        """Queries [B, T, H, n + e] that meet latents and rotated keys as they are cached: [B, T, H, width of a key].

        The bias of k_up adds the same to all scores of a query, so it is left out.
        """
        nope, rope = q.split([self.mla.nope_dim, self.mla.rope_dim], dim=-1)
        if self.mla.caches_scales:
            assert self._k_weight is not None
            nope = nope * self._k_weight[:, : self.mla.nope_dim].to(q.dtype).repeat_interleave(
                self.heads // self.kv_heads, 0
            )
        elif self.mla.rope_heads > 1:  # a rotated query meets its own of the keys that lie side by side
            rope = (rope[..., None, :] * self._slot.to(q.dtype)).flatten(-2)
        return torch.cat([_per_head(nope, self.k_up), rope], dim=-1)

    def _compact(self, seen: Entry) -> tuple[Tensor, Tensor]:
        """Keys [B, 1 or K, S, .] and values that start with the latent: the cache rows as they are.

        With an exact key norm the latents are scaled for every key head; `k_up` is still not applied to them.
        """
        if "scale" not in seen:
            return seen["latent"], seen["latent"]
        latent, turned = self._latent_and_turned(seen)
        scaled = seen["scale"] * latent[:, None]  # [B, K, S, r]
        return torch.cat([scaled, turned.transpose(1, 2)], dim=-1), latent[:, None].expand_as(scaled)

    def _up(self, read: Tensor) -> Tensor:
        """Values [..., H, d] of what the heads read, whose first r numbers are mixed latents."""
        values = _per_head(read[..., : self.rank], self.v_up.transpose(1, 2))
        return values if self.v_up_bias is None else values + self.v_up_bias.to(values.dtype)


def _read(latent: Tensor, up: Tensor, bias: Tensor | None) -> Tensor:
    """What up-projections [heads, width, r] read from latents [B, S, r]: [B, S, heads, width]."""
    heads, width, rank = up.shape
    dtype = latent.dtype
    flat = F.linear(
        latent, up.reshape(heads * width, rank).to(dtype), None if bias is None else bias.flatten().to(dtype)
    )
    return flat.view(*latent.shape[:-1], heads, width)


def _per_head(x: Tensor, weights: Tensor) -> Tensor:
    """x [..., H, a] times the weight [a, b] of each head's group, weights [heads, a, b]: [..., H, b]."""
    heads, width, wide = weights.shape
    count, groups = x.shape[:-2].numel(), x.shape[-2] // heads
    rows = x.reshape(count, heads, groups, width).transpose(0, 1).reshape(heads, count * groups, width)
    product = (rows @ weights.to(x.dtype)).view(heads, count, groups, wide)
    return product.transpose(0, 1).reshape(*x.shape[:-1], wide)
