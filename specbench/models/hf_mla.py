"""Latent attention for the transformers library: Llama, Qwen2 and Qwen3 models whose attention was converted.

This file needs nothing but torch and transformers. A copy of it lies beside the weights of every converted model, so
that ``AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)`` works where this project is not installed;
where it is, `register` makes the classes known and no code is read from the folder. The cache holds the latent and the
rotated key of a token (and the scale of every key head where the keys are normed), never keys and values of heads.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


class LlamaMLAConfig(LlamaConfig):
    """A Llama config with the table `mla`."""

    model_type = "llama_mla"
    base_model_tp_plan: ClassVar[dict[str, Any]] = {}
    mla: dict[str, Any] | None = None


class Qwen2MLAConfig(Qwen2Config):
    """A Qwen2 config with the table `mla`."""

    model_type = "qwen2_mla"
    base_model_tp_plan: ClassVar[dict[str, Any]] = {}
    mla: dict[str, Any] | None = None


class Qwen3MLAConfig(Qwen3Config):
    """A Qwen3 config with the table `mla`."""

    model_type = "qwen3_mla"
    base_model_tp_plan: ClassVar[dict[str, Any]] = {}
    mla: dict[str, Any] | None = None


class MlaHeadRMSNorm(nn.Module):
    """Root-mean-square norm of a head whose numbers are in another order than the stored weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def scale(self, x: Tensor) -> Tensor:
        """The factor [..., 1] of x [..., width], in float32."""
        return torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps)

    def forward(self, x: Tensor, order: Tensor) -> Tensor:
        """x [B, heads, T, width] normed; `order` [heads, width] = place in the weight of every number."""
        return self.weight[order][:, None] * (x.float() * self.scale(x)).to(x.dtype)


class MultiHeadLatentAttention(nn.Module):
    """Attention that reads keys and values out of a cached latent; stands in for `replaced`, whose output it keeps."""

    rope_index: Tensor

    def __init__(self, replaced: Any, config: Any, layer_idx: int) -> None:
        super().__init__()
        mla = config.mla
        if mla is None or mla["form"] != "split":
            raise ValueError("the library's classes need a config with mla.form=split")
        self.config, self.mla, self.layer_idx, self.is_causal = config, mla, layer_idx, True
        self.num_key_value_groups = 1  # keys and values reach the kernels expanded to all heads
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.width, self.rank = replaced.head_dim, mla["ranks"][layer_idx]
        self.nope, self.rope, self.rope_heads = mla["nope_dim"], mla["rope_dim"], mla["rope_heads"]
        hidden, bias, exact = config.hidden_size, mla["bias_mode"] != "none", mla["bias_mode"] == "exact"
        self.q_nope = nn.Linear(hidden, self.heads * self.nope, bias=bias) if self.nope else None
        self.q_rope = nn.Linear(hidden, self.heads * self.rope, bias=bias)
        self.kv_down = nn.Linear(hidden, self.rank, bias=mla["bias_mode"] == "latent")
        self.k_rope = nn.Linear(hidden, self.rope_heads * self.rope, bias=bias)
        self.k_up = nn.Linear(self.rank, mla["key_heads"] * self.nope, bias=exact) if self.nope else None
        self.v_up = nn.Linear(self.rank, self.heads * self.width, bias=exact)
        self.o_proj = replaced.o_proj
        eps = config.rms_norm_eps
        self.q_norm = MlaHeadRMSNorm(self.width, eps) if mla["qk_norm"] != "none" else None
        self.k_norm = MlaHeadRMSNorm(self.width, eps) if mla["qk_norm"] == "exact" else None
        self.register_buffer("rope_index", torch.zeros(self.rope_heads, self.rope // 2, dtype=torch.int64))

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        cache: Any | None = None,
        past_key_values: Any | None = None,  # the name before transformers 5.24
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        cache = cache if cache is not None else past_key_values
        turned = torch.cat([self.rope_index, self.rope_index + self.width // 2], dim=-1)  # [N, e]
        tables = tuple(table[..., turned].transpose(1, 2) for table in position_embeddings)  # [B, N, T, e]
        nope, rope = self._queries(hidden_states, turned, tables)
        latent, extra = self._rows(hidden_states, turned, tables)
        if cache is not None:
            latent, extra = cache.update(latent, extra, self.layer_idx)
        absorbed = cache is not None and hidden_states.shape[1] <= self.mla["absorb_rows"] and self.k_norm is None
        form = self._absorbed if absorbed else self._expanded
        query, key, value = form(nope, rope, latent, extra, turned)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        mixed, weights = attend(
            self, query, key, value, attention_mask, dropout=0.0, scaling=self.mla["scaling"], **kwargs
        )
        if absorbed:  # mixed latents [B, T, H, r]
            mixed = torch.einsum("bthr,hdr->bthd", mixed, self.v_up.weight.view(self.heads, self.width, self.rank))
            mixed = mixed if self.v_up.bias is None else mixed + self.v_up.bias.view(self.heads, self.width)
        return self.o_proj(mixed.reshape(*hidden_states.shape[:2], -1)), weights

    def _queries(self, x: Tensor, turned: Tensor, tables: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Queries without [B, H, T, n] and with [B, H, T, e] rotary embedding."""
        rope = _heads(self.q_rope(x), self.heads)
        q = rope if self.q_nope is None else torch.cat([_heads(self.q_nope(x), self.heads), rope], dim=-1)
        if self.q_norm is not None:
            q = self.q_norm(q, self._order(turned).repeat_interleave(self.heads // self.kv_heads, 0))
        nope, rope = q.split([self.nope, self.rope], dim=-1)
        cos, sin = (table.repeat_interleave(self.heads // self.rope_heads, 1) for table in tables)
        return nope, rope * cos + _rotate_half(rope) * sin

    def _rows(self, x: Tensor, turned: Tensor, tables: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """What is cached of every token: latents [B, 1, T, r], and rotated keys (and scales) [B, 1, T, N e (+ K)]."""
        latent, key = self.kv_down(x), _heads(self.k_rope(x), self.rope_heads)
        scale = None
        if self.k_norm is not None:
            scale = self.k_norm.scale(torch.cat([self._content(latent), key], dim=-1)).to(x.dtype)
            key = key * scale * self.k_norm.weight[turned][:, None]
        cos, sin = tables
        key = (key * cos + _rotate_half(key) * sin).transpose(1, 2).flatten(2)
        if scale is not None:
            key = torch.cat([key, scale.squeeze(-1).transpose(1, 2)], dim=-1)
        return latent[:, None], key[:, None]

    def _expanded(
        self, nope: Tensor, rope: Tensor, latent: Tensor, extra: Tensor, turned: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys [B, H, S, n + e] and values [B, H, S, d] of every head."""
        key = _heads(extra[:, 0, :, : self.rope_heads * self.rope], self.rope_heads)
        key = key.repeat_interleave(self.heads // self.rope_heads, 1)
        if self.k_up is not None:
            content = self._content(latent[:, 0])
            if self.k_norm is not None:
                scale = extra[:, 0, :, self.rope_heads * self.rope :].transpose(1, 2)[..., None]
                content = content * scale * self.k_norm.weight[self._order(turned)[:, : self.nope]][:, None]
            content = content.repeat_interleave(self.heads // content.shape[1], 1)
            key = torch.cat([content, key], dim=-1)
        return torch.cat([nope, rope], dim=-1), key, _heads(self.v_up(latent[:, 0]), self.heads)

    def _absorbed(
        self, nope: Tensor, rope: Tensor, latent: Tensor, extra: Tensor, turned: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries that meet the cached rows themselves [B, H, S, r + N e], and the latents as values [B, H, S, r]."""
        del turned
        batch, _, count, _ = nope.shape
        slots = rope.new_zeros(batch, self.heads, count, self.rope_heads, self.rope)
        own = torch.arange(self.heads, device=rope.device) // (self.heads // self.rope_heads)
        slots[:, torch.arange(self.heads, device=rope.device), :, own] = rope.transpose(0, 1)
        if self.k_up is None:
            content = rope.new_zeros(batch, self.heads, count, self.rank)
        else:
            up = self.k_up.weight.view(-1, self.nope, self.rank)
            up = up.repeat_interleave(self.heads // up.shape[0], 0)
            content = torch.einsum("bhtn,hnr->bhtr", nope, up)
        query = torch.cat([content, slots.flatten(3)], dim=-1)
        key = torch.cat([latent, extra], dim=-1)
        return query, key.expand(-1, self.heads, -1, -1), latent.expand(-1, self.heads, -1, -1)

    def _content(self, latent: Tensor) -> Tensor:
        """Keys without rotary embedding [B, key heads, S, n] of latents [B, S, r]."""
        if self.k_up is None:
            return latent.new_zeros(latent.shape[0], self.mla["key_heads"], latent.shape[1], 0)
        return _heads(self.k_up(latent), self.mla["key_heads"])

    def _order(self, turned: Tensor) -> Tensor:
        """Which numbers of a base's head every key head [K, d] holds: those without rotary embedding first."""
        rest = torch.ones(turned.shape[0], self.width, dtype=torch.bool, device=turned.device).scatter(1, turned, False)
        return torch.cat([rest.nonzero()[:, 1].view(turned.shape[0], self.nope), turned], dim=-1)


def _heads(x: Tensor, heads: int) -> Tensor:
    """[B, T, heads * width] as [B, heads, T, width]."""
    return x.reshape(*x.shape[:-1], heads, -1).transpose(1, 2)


def _rotate_half(x: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return torch.cat([-high, low], dim=-1)


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Plain attention: output [B, T, H, width] and weights [B, H, T, S]."""
    scores = query @ key.transpose(2, 3) * scaling
    scores = scores if attention_mask is None else scores + attention_mask
    weights = nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class _Latent:
    """What a library model with latent attention in every layer has in common; stands before the library's class."""

    _supports_flash_attn = False
    _supports_flex_attn = False

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        model: Any = self
        for index, layer in enumerate(model.model.layers):
            layer.self_attn = MultiHeadLatentAttention(layer.self_attn, config, index)
        model.post_init()


class LlamaMLAForCausalLM(_Latent, LlamaForCausalLM):
    """Llama with latent attention."""

    config_class = LlamaMLAConfig


class Qwen2MLAForCausalLM(_Latent, Qwen2ForCausalLM):
    """Qwen2 with latent attention."""

    config_class = Qwen2MLAConfig


class Qwen3MLAForCausalLM(_Latent, Qwen3ForCausalLM):
    """Qwen3 with latent attention."""

    config_class = Qwen3MLAConfig


def register() -> None:
    """Make the library's Auto classes know these models; what `save_pretrained` writes then brings this file along."""
    models: tuple[Any, ...] = (LlamaMLAForCausalLM, Qwen2MLAForCausalLM, Qwen3MLAForCausalLM)
    for model in models:
        AutoConfig.register(model.config_class.model_type, model.config_class, exist_ok=True)
        AutoModelForCausalLM.register(model.config_class, model, exist_ok=True)
        model.config_class.register_for_auto_class()
        model.register_for_auto_class("AutoModelForCausalLM")
