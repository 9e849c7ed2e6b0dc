"""The shared second half of every converter: unrotated keys and values of a split layer through one latent."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.config.methods_mla import MlaConfig
from specbench.conversion import transmla
from specbench.conversion.factor import Factor, factor, spectrum
from specbench.conversion.layer import Projection, Split
from specbench.conversion.statistics import LayerStatistics
from specbench.types import ConfigError


@dataclass(frozen=True)
class Stack:
    """What goes through the latent: rows of unrotated keys (divided by `ratio`), then rows of values.

    With biases in the latent their column stands behind the weights', and `moment` is that of [x; 1].
    """

    keys: Tensor  # [m, D or D + 1]
    values: Tensor  # [K d, D or D + 1]
    moment: Tensor | None  # None: by the weights alone
    ratio: float

    @classmethod
    def of(cls, split: Split, statistics: LayerStatistics, config: MlaConfig) -> Stack:
        """`ratio` balances keys against values for transmla only."""
        inside = config.bias_mode == "latent"
        moment = statistics.augmented_moment() if inside and _biased(split) else statistics.moment
        keys, values = (_rows(part, inside=inside) for part in (split.k_nope, split.weights.v))
        ratio = 1.0
        if config.converter == "transmla":
            ratio = transmla.balance(keys @ moment @ keys.T, values @ moment @ values.T, config.balance)
        return cls(keys / ratio, values, moment if config.factor == "whitened" else None, ratio)

    @property
    def weight(self) -> Tensor:
        return torch.cat([self.keys, self.values])

    def spectrum(self) -> Tensor:
        """Squared singular values of the joint factor, descending."""
        return spectrum(self.weight, self.moment)

    def factor(self, rank: int, latent: str) -> Factor:
        """Down [r, D] and up [m + K d, r], keys still divided; two latents lie side by side in r."""
        if latent == "joint" or self.keys.shape[0] == 0:
            return factor(self.weight, rank, self.moment)
        ranks = self._ranks(rank, latent)
        key, value = (factor(part, r, self.moment) for part, r in zip((self.keys, self.values), ranks, strict=True))
        return Factor(torch.cat([key.down, value.down]), torch.block_diag(key.up, value.up))

    def _ranks(self, rank: int, latent: str) -> tuple[int, int]:
        limits = [min(part.shape) for part in (self.keys, self.values)]
        keys = {
            "split": max(min(rank // 2, limits[0]), rank - limits[1]),
            "only_key": rank - limits[1],
            "only_value": limits[0],
        }[latent]
        if not (1 <= keys <= limits[0] and 1 <= rank - keys <= limits[1]):
            raise ConfigError(
                f"method.latent={latent}: a rank of {rank} leaves no room for keys of rank up to {limits[0]} and "
                f"values of rank up to {limits[1]}; raise method.budget, or set method.latent=joint"
            )
        return keys, rank - keys


def compress(
    split: Split, statistics: LayerStatistics, rank: int, config: MlaConfig, *, expanded: bool = True
) -> dict[str, Tensor]:
    """Tensors of the latent layer by their names in `self_attn.`, float64.

    `expanded`: the key up-projection holds all H query heads, which start equal within a group and may part in tuning.
    """
    stack = Stack.of(split, statistics, config)
    found = stack.factor(rank, config.latent)
    weights, rows, inside = split.weights, split.k_nope.rows, _inside(split, config)
    down = Projection(found.down[:, :-1], found.down[:, -1]) if inside else Projection(found.down)
    key_up = split.readers @ (found.up[:rows] * stack.ratio)  # [K, n, r]
    value_up = found.up[rows:].view(weights.kv_heads, weights.width, -1)
    key_bias = value_bias = None
    if _biased(split) and not inside:
        assert split.k_nope.bias is not None
        assert weights.v.bias is not None
        key_bias = split.readers @ split.k_nope.bias
        value_bias = weights.v.bias.view(weights.kv_heads, weights.width)
    groups = weights.groups
    parts = {
        ("q_proj" if split.rotate_nope else "q_nope"): split.q_nope,
        "q_rope": split.q_rope,
        "k_rope": split.k_rope,
        "kv_down": down,
        "k_up": _heads(key_up, key_bias, groups if expanded else 1),
        "v_up": _heads(value_up, value_bias, groups),
    }
    return _named(parts) | _rest(split)


def _named(parts: dict[str, Projection]) -> dict[str, Tensor]:
    named = {f"{name}.weight": part.weight for name, part in parts.items() if part.rows}
    return named | {f"{name}.bias": p.bias for name, p in parts.items() if p.rows and p.bias is not None}


def _rest(split: Split) -> dict[str, Tensor]:
    rest: dict[str, Tensor] = {"rope_index": split.rope_index} if split.rope_index.numel() else {}
    if split.weights.qk_norm is not None:
        rest |= dict(zip(("q_norm.weight", "k_norm.weight"), split.weights.qk_norm, strict=True))
    return rest


def _heads(up: Tensor, bias: Tensor | None, repeat: int) -> Projection:
    """Up-projections [K, w, r] of key heads, each repeated for its query heads: [K * repeat * w, r]."""
    spread = up.repeat_interleave(repeat, dim=0).flatten(0, 1)
    return Projection(spread, None if bias is None else bias.repeat_interleave(repeat, dim=0).flatten())


def _biased(split: Split) -> bool:
    return split.weights.v.bias is not None


def _inside(split: Split, config: MlaConfig) -> bool:
    return _biased(split) and config.bias_mode == "latent"


def _rows(part: Projection, *, inside: bool) -> Tensor:
    return torch.cat([part.weight, part.bias[:, None]], dim=1) if inside and part.bias is not None else part.weight
