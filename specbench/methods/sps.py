"""Speculative sampling with a draft model (Leviathan et al. 2023, Chen et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from specbench.decoding.protocol import Controller, DrafterBase, Request
from specbench.decoding.target import fill
from specbench.methods.build import Parts, build_controller
from specbench.methods.chain import ChainDrafter
from specbench.methods.past import Past
from specbench.models.decoder import Decoder
from specbench.models.kv_cache import KVCache
from specbench.models.linear import scored_ids, scored_logits
from specbench.types import Draft, Verdict, VerifyResult


def readable(tokens: Sequence[int], draft: Decoder, *, target: Decoder) -> Sequence[int]:
    """Tokens as the draft can read them: an id of the target's padding beyond its vocabulary becomes its last."""
    vocab = draft.spec.vocab_size
    return tokens if vocab >= target.spec.vocab_size else [min(token, vocab - 1) for token in tokens]


@dataclass
class SpeculativeSampling(DrafterBase):
    """A smaller model drafts a chain; its cache is its own and catches up on what it has not seen in each propose."""

    draft: Decoder
    controller: Controller
    _cache: KVCache | None = field(init=False, default=None)
    _past: Past | None = field(init=False, default=None)
    _before: int = field(init=False, default=0)  # committed tokens when the draft was made
    _drafted: int = field(init=False, default=0)

    @classmethod
    def build(cls, config: Any, parts: Parts) -> SpeculativeSampling:
        return cls(parts.require_draft(), build_controller(config, parts))

    @property
    def cache(self) -> KVCache:
        assert self._cache is not None, "begin comes first"
        return self._cache

    def begin(self, request: Request) -> None:
        super().begin(request)
        self._cache = self.draft.reserve(self._cache, len(request.committed) + request.max_new_tokens)
        self.controller.begin(request)
        known = self._known(request.committed[:-1])
        self._past = Past(self.draft, self.cache) if "past" in self.controller.signals else None
        if self._past is None:
            fill(self.draft, self.cache, known)
        else:
            self._past.fill(known)

    def propose(self, budget: int) -> Draft:
        self._before = len(self.request.committed)
        past = None if self._past is None else self._past.first(self._before - 1)
        vocab, scored = self.request.target.decoder.spec.vocab_size, scored_ids(self.draft.head)
        chain = ChainDrafter(self.controller, vocab, self.request, past=past, scored=scored)
        draft = chain.draft(self._forward, self._known(self.request.committed[self.cache.length :]), budget=budget)
        self._drafted = len(draft)
        return draft

    def observe(self, verdict: Verdict, result: VerifyResult) -> None:
        # Rows of rejected tokens go; the last accepted token of a full acceptance was never fed and follows next time.
        self.cache.truncate(min(self.cache.length, self._before + verdict.num_accepted))
        self.controller.end_step(self._drafted, verdict)

    def reset(self) -> None:
        self.controller.reset()

    def _known(self, tokens: Sequence[int]) -> Sequence[int]:
        return readable(tokens, self.draft, target=self.request.target.decoder)

    def _forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        if self._past is None:
            out = self.draft.forward(ids, self.cache, start=self.cache.length, logits="none")
            states = self.draft.final_norm(out.hidden[0, -1:])
        else:
            states = self._past.states(ids)
            self._past.put(self.cache.length, states)
        self.cache.keep(range(ids.shape[1]))
        return scored_logits(self.draft.head, states[None, -1:])[0, 0], states[-1]
