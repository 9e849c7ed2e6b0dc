"""What multi-head latent attention looks like: the numbers and switches of the `mla` table in config.json.

No torch here, as in `spec`. H query heads, K key/value heads and p = head_dim / 2 rotary pairs are the base model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from specbench.types import ModelError

if TYPE_CHECKING:
    from specbench.models.spec import ModelSpec

Form = Literal["split", "svd"]
BiasMode = Literal["none", "exact", "latent"]
QKNormMode = Literal["none", "exact", "static"]
# Both forms do equal work at about r (n + d) / (2 r + N e - n - e - d) rows, however long the context: 60 to 130 for
# the usual shapes at half of the cache. Ours; no paper gives a number.
DEFAULT_ABSORB_ROWS = 64


@dataclass(frozen=True)
class LatentSpec:
    """Shape of every layer's latent attention; widths are counts of elements.

    `form`: split = keys have parts without and with rotary embedding, so that decoding never expands the latent; svd =
    keys are expanded, then rotated, in every pass. `bias_mode`: where biases of the base's keys and values live: on the
    rotated key and the up-projections (exact), or in the latent (latent). `qk_norm` (of a base that has it): exact
    keeps the norm and caches one scale a key head, static has its mean folded into the weights of the keys.
    """

    form: Form
    ranks: tuple[int, ...]  # of the latent, one a layer
    rope_heads: int  # rotated keys a token: 1 or K; 0 in form svd
    rope_dim: int  # width of a rotated key; 0 in form svd
    nope_dim: int  # width of a head's key without rotary embedding; head_dim in form svd, where all of it is rotated
    key_heads: int  # heads that k_up holds: H, or K where the heads of a group share one
    scaling: float  # factor of the scores: the base's 1 / sqrt(head_dim)
    bias_mode: BiasMode = "none"
    qk_norm: QKNormMode = "none"
    absorb_rows: int = DEFAULT_ABSORB_ROWS  # cached passes of at most so many rows decode in the latent; 0 = none

    @property
    def caches_scales(self) -> bool:
        """Whether the cache holds, beside latent and rotated key, the scale of every key head's norm."""
        return self.form == "split" and self.qk_norm == "exact"

    def cache_width(self, layer: int) -> int:
        """Elements that one token takes in the cache of a layer."""
        scales = self.rope_heads if self.caches_scales else 0
        return self.ranks[layer] + self.rope_heads * self.rope_dim + scales

    def to_config(self) -> dict[str, Any]:
        """The `mla` table of config.json."""
        return {**asdict(self), "ranks": list(self.ranks)}

    def check(self, base: ModelSpec) -> None:
        """Raise ModelError naming the first field that does not fit the base model's shape, and what would."""
        for name, legal in self._legal(base).items():
            if getattr(self, name) not in legal:
                allowed = ", ".join(str(value) for value in legal)
                raise ModelError(f"mla.{name}={getattr(self, name)} is not possible here; legal: {allowed}")
        if len(self.ranks) != base.num_layers or not all(rank >= 1 for rank in self.ranks):
            raise ModelError(f"mla.ranks must hold a whole number >= 1 for each of {base.num_layers} layers")
        if self.form == "split" and not (self.rope_dim >= 2 and self.rope_dim % 2 == 0):
            raise ModelError(f"mla.rope_dim={self.rope_dim} is not possible here; legal: even numbers from 2 on")
        if self.nope_dim < 0 or self.absorb_rows < 0 or not self.scaling > 0:
            raise ModelError("mla.nope_dim and mla.absorb_rows must be >= 0, mla.scaling > 0")
        self._check_norm(base)

    def _legal(self, base: ModelSpec) -> dict[str, tuple[Any, ...]]:
        svd, shared = self.form == "svd", self.caches_scales
        both = (base.num_heads, base.num_kv_heads)
        return {
            "form": get_args(Form),
            "rope_heads": (0,) if svd else (1, base.num_kv_heads),
            **({"rope_dim": (0,), "nope_dim": (base.head_dim,)} if svd else {}),
            # One scale serves a group of query heads only while they share the key that it belongs to.
            "key_heads": (base.num_kv_heads,) if shared else both,
            "bias_mode": ("exact", "latent") if base.qkv_bias else ("none",),
            "qk_norm": (("exact",) if svd else ("exact", "static")) if base.qk_norm else ("none",),
        }

    def _check_norm(self, base: ModelSpec) -> None:
        if self.form == "svd" or self.qk_norm == "none":
            return
        if self.rope_heads != base.num_kv_heads or self.nope_dim + self.rope_dim != base.head_dim:
            raise ModelError(
                "a model that norms its queries and keys needs mla.rope_heads = num_kv_heads and mla.nope_dim + "
                "mla.rope_dim = head_dim: a rotation across heads does not commute with the norm of a head"
            )
        if self.qk_norm == "exact" and self.bias_mode == "exact":
            raise ModelError("mla.qk_norm=exact with mla.bias_mode=exact is not supported; legal: mla.bias_mode=latent")


def latent_from_config(table: Mapping[str, Any]) -> LatentSpec:
    """The spec that the `mla` table of a config.json describes; keys of others (provenance) are left alone.

    Raises ModelError naming the key.
    """
    own = {field.name for field in fields(LatentSpec)}
    needed = own - {"bias_mode", "qk_norm", "absorb_rows"}
    missing = sorted(needed - table.keys())
    if missing:
        raise ModelError(f"config.json: mla lacks {', '.join(missing)}")
    given = {name: value for name, value in table.items() if name in own}
    for name in ("rope_heads", "rope_dim", "nope_dim", "key_heads", "absorb_rows"):
        if name in given and not _whole(given[name]):
            raise ModelError(f"config.json: mla.{name} must be a whole number, found {given[name]!r}")
    if not isinstance(given["ranks"], list) or not all(_whole(rank) for rank in given["ranks"]):
        raise ModelError(f"config.json: mla.ranks must be a list of whole numbers, found {given['ranks']!r}")
    if not isinstance(given["scaling"], int | float):
        raise ModelError(f"config.json: mla.scaling must be a number, found {given['scaling']!r}")
    return LatentSpec(**cast(dict[str, Any], {**given, "ranks": tuple(given["ranks"])}))


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
