"""From a model's statistics to its converted layers: which rotation, which ranks, which folding, and the spec."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from torch import Tensor

from specbench.config.methods_mla import MlaConfig
from specbench.conversion import mha2mla, svd, transmla
from specbench.conversion.budget import Elements
from specbench.conversion.compress import Stack, compress
from specbench.conversion.layer import Split, attention_weights
from specbench.conversion.ranks import water_fill
from specbench.conversion.statistics import LayerStatistics
from specbench.models.checkpoint import cast_all
from specbench.models.decoder import Decoder
from specbench.models.latent_spec import BiasMode, LatentSpec
from specbench.types import ConfigError

log = logging.getLogger(__name__)

# Held-out perplexity of the model that these layers make: (spec, tensors of all layers) -> a number.
Perplexity = Callable[[LatentSpec, dict[str, Tensor]], float]


@dataclass(frozen=True)
class Plan:
    """What is decided for a whole model; `trials` are the held-out perplexities that `freqfold` was chosen by."""

    freqfold: int
    ranks: tuple[int, ...]
    trials: Mapping[str, float]  # by folding
    seconds: float = 0.0  # what deciding took


@dataclass(frozen=True)
class Converter:
    """Layers of a decoder with grouped-query attention (float32 or wider) converted one at a time."""

    decoder: Decoder
    config: MlaConfig
    statistics: Sequence[LayerStatistics]

    def plan(self, perplexity: Perplexity) -> Plan:
        """Choose folding and ranks; `perplexity` is asked only where `freqfold` is auto."""
        fold, trials = self._freqfold(perplexity)
        return Plan(fold, self.ranks(fold), trials)

    def ranks(self, freqfold: int) -> tuple[int, ...]:
        """The rank of every layer: the one that fits the budget, or shared out by the spectra with the same sum."""
        count = self.decoder.spec.num_layers
        elements = Elements.of(self.split(0, freqfold))
        config = self.config
        mean = elements.rank(config.budget) if config.rank is None else elements.checked(config.rank)
        if config.ranks == "uniform":
            return (mean,) * count
        splits = (self.split(layer, freqfold) for layer in range(count))
        spectra = [Stack.of(split, self.statistics[i], config).spectrum() for i, split in enumerate(splits)]
        return tuple(water_fill(spectra, mean))

    def split(self, layer: int, freqfold: int) -> Split:
        """One layer with its rotation decided."""
        weights, statistics, config = attention_weights(self.decoder, layer), self.statistics[layer], self.config
        if config.converter == "svd":
            return svd.split(weights)
        if config.converter == "mha2mla":
            rope_dim = config.rope_dim or mha2mla.default_rope_dim(weights.width)
            return mha2mla.split(weights, statistics, rope_dim=rope_dim, select=config.rope_select)
        rope_dim = config.rope_dim or transmla.default_rope_dim(weights.width)
        return transmla.split(weights, statistics, rope_dim=rope_dim, freqfold=freqfold)

    def layer(self, layer: int, plan: Plan) -> dict[str, Tensor]:
        """The converted layer by names in `self_attn.`, float64."""
        split = self.split(layer, plan.freqfold)
        return compress(split, self.statistics[layer], plan.ranks[layer], self.config, expanded=self._expanded)

    def full_rank(self, layer: int, plan: Plan) -> dict[str, Tensor]:
        """The same layer before compression, with a latent that loses nothing."""
        split = self.split(layer, plan.freqfold)
        config = replace(self.config, factor="svd", latent="joint")
        limit = Elements.of(split).limit
        return compress(split, self.statistics[layer], limit, config, expanded=self._expanded)

    def spec(self, plan: Plan) -> LatentSpec:
        """The spec of the latent model."""
        base, split = self.decoder.spec, self.split(0, plan.freqfold)
        return LatentSpec(
            form="svd" if split.rotate_nope else "split",
            ranks=plan.ranks,
            rope_heads=split.rope_heads,
            rope_dim=split.rope_dim,
            nope_dim=split.nope_dim,
            key_heads=base.num_heads if self._expanded else base.num_kv_heads,
            scaling=base.head_dim**-0.5,
            bias_mode=cast(BiasMode, self.config.bias_mode) if base.qkv_bias else "none",
            qk_norm="exact" if base.qk_norm else "none",
        )

    @property
    def _expanded(self) -> bool:
        """With q/k norm the cached scale belongs to a key head, so its query heads must go on sharing the key."""
        return not self.decoder.spec.qk_norm

    def _freqfold(self, perplexity: Perplexity) -> tuple[int, dict[str, float]]:
        config = self.config
        if config.converter != "transmla":
            return 1, {}
        if not isinstance(config.freqfold, str):
            return config.freqfold, {}
        best, lowest, trials = 1, float("inf"), {}
        for fold in self._folds():
            found = trials[str(fold)] = self._perplexity(perplexity, fold)
            log.info("freqfold %d: held-out perplexity %.3f", fold, found)
            if not found < lowest:
                break
            best, lowest = fold, found
        return best, trials

    def _folds(self) -> list[int]:
        weights = attention_weights(self.decoder, 0)
        rope_dim = self.config.rope_dim or transmla.default_rope_dim(weights.width)
        found = transmla.folds(weights, rope_dim)
        transmla.check(weights, rope_dim=rope_dim, freqfold=found[0] if found else 1)
        if not found:
            raise ConfigError(f"method.freqfold=auto: no folding fits method.rope_dim={rope_dim}; name one")
        return found

    def _perplexity(self, perplexity: Perplexity, fold: int) -> float:
        trial = Plan(fold, self.ranks(fold), {})
        return perplexity(self.spec(trial), dict(self.tensors(trial)))

    def tensors(self, plan: Plan) -> Iterator[tuple[str, Tensor]]:
        """(full name, tensor) of every converted layer, floats in the decoder's dtype."""
        for layer in range(self.decoder.spec.num_layers):
            yield from full_names(layer, cast_all(self.layer(layer, plan), self.decoder.dtype)).items()


def full_names(layer: int, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names in `self_attn.` -> names in a model's folder."""
    return {f"model.layers.{layer}.self_attn.{name}": tensor for name, tensor in parts.items()}
