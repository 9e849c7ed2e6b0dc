"""ConfLayers (arXiv 2604.14612): draft without the layers whose outputs are least peaked, chosen while decoding."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specbench.decoding.protocol import Request
from specbench.methods.build import Parts, build_controller
from specbench.methods.confidence_selection import Array, Rule, Selection, confidences, entropies, select
from specbench.methods.confl_search import Layers, LayerSearch, SearchRules
from specbench.methods.layer_skip import LayerSkipDrafter, layers_to_sublayers
from specbench.methods.skip_search import SearchingDrafter, branching, initial_set, interior, look, with_given_set
from specbench.models.decoder import Decoder, Taps
from specbench.models.kv_cache import KVCache
from specbench.types import Verdict

_CHUNK = 128  # rows of one pass when the context allows several; bounds the outputs that are held at once


@dataclass(frozen=True)
class Context:
    """Which tokens a choice looks at: the last `size` generated ones, read where they stand or `behind_prompt`.

    `behind_prompt` (as published) reads them right after the prompt's rows, without what was generated in between.
    """

    size: int
    behind_prompt: bool = False

    def passes(self, committed: list[int], prompt_length: int) -> Iterator[tuple[list[int], int]]:
        """(tokens, prefix) of every pass; the last committed token is the next root and left out."""
        end = len(committed) - 1
        if self.behind_prompt:
            yield committed[end - self.size : end], prompt_length
            return
        for first in range(end - self.size, end, _CHUNK):
            yield committed[first : min(first + _CHUNK, end)], first


@dataclass(kw_only=True)
class ConfLayers(SearchingDrafter):
    """Chooses whole layers by `rule` from confidences over `context`, and judges them as `search_rules` says."""

    search_rules: SearchRules
    rule: Rule
    context: Context
    source: str  # module_outputs | lm_head
    num_candidates: int
    search: LayerSearch = field(init=False)
    _layers: Layers = field(init=False, default=())

    @classmethod
    def build(cls, config: Any, parts: Parts) -> LayerSkipDrafter:
        """With `skip_set` a drafter that never searches."""
        decoder = parts.target.decoder
        return with_given_set(config, parts) or cls(
            controller=build_controller(config, parts),
            branching=branching(config.tree, parts),
            initial=initial_set(config, parts),
            num_candidates=interior(decoder, least=2),
            search_rules=_named(SearchRules, config),
            rule=selection_rule(config, decoder),
            context=Context(config.context_window, behind_prompt=config.context_anchor == "prompt"),
            source=config.confidence_source,
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._start_over()

    def begin(self, request: Request) -> None:
        super().begin(request)
        self.search.begin()

    @property
    def has_searched(self) -> bool:
        return self.search.opt_iter > 0

    def best(self) -> frozenset[int] | None:
        """Of an unfinished search the best judged set."""
        unfinished = self.search.active and self.search.best_layers
        return layers_to_sublayers(self.search.best_layers) if unfinished else self.skip

    def search_step(self, verdict: Verdict) -> None:
        if self.search.active and self.num_generated > self.context.size + 1:
            if self.search.is_due(self._layers, drafted=self._drafted, accepted=verdict.num_accepted):
                self._choose()
            elif not self.search.active:
                self._record("score", {})

    def reset(self) -> None:
        super().reset()
        self._start_over()

    def confidences(self) -> Array:
        """Confidences of the layers 1..L-2 on the current context, in the rule's precision."""
        request = self.request
        found = [
            module_entropies(request.target.decoder, request.target.cache, tokens, prefix, self.source)
            for tokens, prefix in self.context.passes(request.committed, self._prompt_length)
        ]
        decoder = request.target.decoder
        width = decoder.spec.hidden_size if self.source == "module_outputs" else decoder.spec.vocab_size
        means = torch.cat(found, dim=-1).double().mean(-1).cpu().numpy()  # [modules, L-2]
        # As published, every module's confidence is rounded before they are added.
        total: Array = confidences(means, width, self.rule.dtype).sum(axis=0)
        return total

    def _start_over(self) -> None:
        self.search = LayerSearch(self.search_rules, self.num_candidates)
        self._layers = tuple(sorted({sublayer // 2 for sublayer in self.skip or ()}))

    def _choose(self) -> None:
        start, lam, opt_iter = time.perf_counter(), self.search.lam, self.search.opt_iter
        values = self.confidences()
        chosen = select(values, self.num_candidates + 2, lam, self.rule)
        self._layers = self.search.adopt(chosen.layers)
        why = {"opt_iter": opt_iter, "lambda": lam, "lambda_next": self.search.lam, **_shown(values, chosen)}
        self._record("chosen", {**why, "search_s": time.perf_counter() - start})

    def _record(self, reason: str, why: dict[str, Any]) -> None:
        accepted, rate = self.search.measured or (None, None)
        self.install(
            layers_to_sublayers(self._layers),
            reason=reason,
            active=self.search.active,
            measured_accepted=accepted,
            measured_acceptance_rate=rate,
            best_accepted=self.search.best_accepted,
            best_layers=self.search.best_layers,
            **why,
        )


def module_entropies(decoder: Decoder, cache: KVCache, tokens: list[int], prefix: int, source: str) -> Tensor:
    """Entropies [modules, L-2, n] of a pass over n tokens behind `prefix` cache rows.

    `module_outputs`: of attention and MLP outputs over the hidden channels; `lm_head`: of the residual stream after a
    layer, normed and projected to the vocabulary.
    """
    layers = range(1, decoder.spec.num_layers - 1)
    if source == "lm_head":
        taps = Taps(residuals=[2 * layer + 1 for layer in layers])
        out = look(decoder, cache, tokens, prefix, layers=(0, layers.stop), taps=taps, logits="none")
        read = [decoder.head(decoder.final_norm(out.residuals[2 * layer + 1]))[0] for layer in layers]
        return torch.stack([entropies(rows) for rows in read])[None]
    taps = Taps(sublayer_outputs=range(2, 2 * layers.stop))
    out = look(decoder, cache, tokens, prefix, layers=(0, layers.stop), taps=taps, logits="none")
    kinds = [[entropies(out.sublayer_outputs[2 * layer + kind][0]) for layer in layers] for kind in (0, 1)]
    return torch.stack([torch.stack(rows) for rows in kinds])


def selection_rule(config: Any, decoder: Decoder) -> Rule:
    """The rule of a config; the published code bounds the window gain for Qwen models by a third of the layers."""
    bounded = config.bound_gain_on_qwen and decoder.spec.family.startswith("qwen")
    return Rule(
        dtype=config.select_dtype,
        window_base=config.window_base,
        window_gain=config.window_gain,
        fixed_window=None if config.window_mode == "adaptive" else int(config.window_mode),
        max_gain=decoder.spec.num_layers // 3 if bounded else None,
    )


def _named(cls: type[SearchRules], config: Any) -> SearchRules:
    return cls(**{f.name: getattr(config, f.name) for f in dataclasses.fields(cls)})


def _shown(values: Array, chosen: Selection) -> dict[str, Any]:
    """What led to a choice, as plain numbers: one entry a layer 1..L-2."""
    return {
        "confidences": [float(value) for value in values],
        "z": [float(value) for value in chosen.z],
        "windows": list(chosen.windows),
        "thresholds": [float(value) for value in np.asarray(chosen.thresholds)],
        "selected_layers": list(chosen.layers),
    }
