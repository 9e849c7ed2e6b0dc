"""Prompt lookup decoding: what followed the last tokens before is proposed again (Saxena 2023).

Two published variants and ours differ in config only: n-gram sizes, which occurrence counts, and the draft length.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from specbench.decoding.loop import empty_draft
from specbench.decoding.protocol import DrafterBase, Request
from specbench.methods.build import Parts
from specbench.methods.lengths import LengthPlanner
from specbench.methods.ngram import Hit, NgramIndex
from specbench.types import Draft, Verdict, VerifyResult


@dataclass
class PromptLookup(DrafterBase):
    """Drafts the continuation of an earlier occurrence of the last `min_ngram`..`max_ngram` tokens.

    `planner` chooses the length from the measured cost of verifying; without one it is `num_draft_tokens`.
    `whole_continuation` takes only places that all those tokens follow. A draft ends before a stop id.
    """

    min_ngram: int
    max_ngram: int
    num_draft_tokens: int
    match: str = "first"
    whole_continuation: bool = False
    planner: LengthPlanner | None = None
    _index: NgramIndex = field(init=False)
    _proposed: tuple[Hit, int] | None = field(init=False, default=None)  # the hit and how much of it was drafted

    @classmethod
    def build(cls, config: Any, parts: Parts) -> PromptLookup:
        auto = config.num_draft_tokens == "auto"
        planner = None
        if auto:
            assert parts.curve is not None
            planner = LengthPlanner(parts.curve(), cap=config.max_draft_tokens, prior=config.prior_acceptance)
        return cls(
            config.min_ngram,
            config.max_ngram,
            config.max_draft_tokens if auto else config.num_draft_tokens,
            config.match,
            config.whole_continuation,
            planner,
        )

    def begin(self, request: Request) -> None:
        super().begin(request)
        self._index = NgramIndex(self.min_ngram, self.max_ngram)
        self._index.extend(request.committed)

    def propose(self, budget: int) -> Draft:
        self._proposed = None
        if budget <= 0:
            return empty_draft("budget")
        self._index.extend(self.request.committed[len(self._index.tokens) :])
        hit = self._index.find(self.match, continuation=self.num_draft_tokens if self.whole_continuation else 1)
        if hit is None:
            return empty_draft("no_match")
        length = min(budget, self.num_draft_tokens if self.planner is None else self.planner.length(hit.size))
        tokens = self._continuation(hit, length)
        if not tokens:
            return empty_draft("planned" if length == 0 else "stop_id")
        self._proposed = (hit, len(tokens))
        return Draft(
            tokens=torch.tensor(tokens, device=self.request.target.decoder.device),
            spine=len(tokens),
            info={"match_size": hit.size},
        )

    def observe(self, verdict: Verdict, result: VerifyResult) -> None:
        if self.planner is not None and self._proposed is not None:
            hit, drafted = self._proposed
            self.planner.learn(hit.size, drafted=drafted, accepted=verdict.num_accepted)

    def reset(self) -> None:
        if self.planner is not None:
            self.planner.reset()

    def _continuation(self, hit: Hit, length: int) -> list[int]:
        tokens = self._index.tokens[hit.position : hit.position + length]
        stop = next((i for i, token in enumerate(tokens) if token in self.request.stop_ids), len(tokens))
        return tokens[:stop]
