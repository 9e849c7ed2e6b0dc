"""How large a latent may be: from a share of the original's cache to a rank."""

from __future__ import annotations

from dataclasses import dataclass

from specbench.conversion.layer import Split
from specbench.types import ConfigError

STEP = 8  # whole caches are multiples of it, as hardware likes them


@dataclass(frozen=True)
class Elements:
    """Numbers cached a token and layer: of the original, and of what a conversion keeps beside the latent.

    `limit`: the rank at which the factors are exact.
    """

    original: int  # 2 K d
    beside: int  # N e, and K scales with q/k norm
    limit: int

    @classmethod
    def of(cls, split: Split) -> Elements:
        """For one layer whose rotation is decided."""
        weights = split.weights
        cached = weights.k.rows + weights.v.rows
        scales = weights.kv_heads if weights.qk_norm is not None and not split.rotate_nope else 0
        rows = split.k_nope.rows + weights.v.rows
        return cls(cached, split.k_rope.rows + scales, min(rows, weights.hidden_size))

    def rank(self, budget: float) -> int:
        """The rank that fills `budget`, a share of the original, at most the exact one; ConfigError where none does."""
        rank = round(budget * self.original / STEP) * STEP - self.beside
        if rank < 1:
            raise ConfigError(
                f"method.budget={budget:g}: {self.beside} of {self.original} cached numbers a token are rotated keys, "
                f"so the budget must be above {self.beside / self.original:.2f}; or set method.rope_dim lower"
            )
        return min(rank, self.limit)

    def checked(self, rank: int) -> int:
        """A rank that the user names; ConfigError where it is larger than exact."""
        if not 1 <= rank <= self.limit:
            raise ConfigError(f"method.rank={rank}: legal for this model, converter and rope_dim: 1 to {self.limit}")
        return rank
