"""Lookahead decoding: the target makes phrases of its own by parallel decoding and verifies them (Fu et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from specbench.decoding.loop import empty_draft
from specbench.decoding.protocol import DrafterBase, Request
from specbench.methods.build import Parts
from specbench.methods.lookahead_engine import LookaheadEngine, Plan
from specbench.types import Draft, Needs, Verdict, VerifyResult


@dataclass
class Lookahead(DrafterBase):
    """Drafts the phrases known after the last token; the window that finds new ones rides along as passengers."""

    engine: LookaheadEngine
    take_perfect_bonus: bool = True
    _plan: Plan | None = field(init=False, default=None)

    @classmethod
    def build(cls, config: Any, parts: Parts) -> Lookahead:
        return cls(build_engine(config), config.take_perfect_bonus)

    def begin(self, request: Request) -> None:
        super().begin(request)
        self.engine.begin(request.committed)

    def needs(self) -> Needs:
        return Needs(argmax=True)

    def propose(self, budget: int) -> Draft:
        self._plan = None
        if budget <= 0:
            return empty_draft("budget")
        self._plan = plan = self.engine.plan(self.request.committed[-1], depth=budget)
        return Draft(
            tokens=torch.tensor(plan.tokens, device=self.request.target.decoder.device),
            parents=plan.parents,
            passengers=plan.passengers,
            leaf_bonus=self.take_perfect_bonus or budget < self.engine.pool.length,
            info={"num_phrases": len(plan.trie.paths)},
        )

    def observe(self, verdict: Verdict, result: VerifyResult) -> None:
        if self._plan is not None:
            assert result.argmax is not None
            newest = self._plan.newest
            self.engine.learn(result.argmax[newest.start + 1 : newest.stop + 1].tolist())  # row 0 is the root

    def reset(self) -> None:
        self.engine.pool.clear()


def build_engine(config: Any) -> LookaheadEngine:
    """The engine of a method's config."""
    return LookaheadEngine.of(
        level=config.level, window=config.window, guess_set=config.guess_set, seed=config.window_seed
    )
