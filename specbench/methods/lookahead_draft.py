"""A draft model that decodes with lookahead on a cache of its own: one pass gives one or several tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specbench.decoding.protocol import Request
from specbench.decoding.stopping import cut
from specbench.decoding.target import fill
from specbench.decoding.verification import verify
from specbench.methods.lookahead_engine import LookaheadEngine, Plan
from specbench.methods.past import Past
from specbench.methods.sps import readable
from specbench.models.decoder import Decoder, ancestor_mask
from specbench.models.kv_cache import KVCache
from specbench.types import Draft, Verdict, VerifyResult


@dataclass(frozen=True)
class Burst:
    """The m tokens of one pass, and of each the row that predicted it: its logits and its state."""

    tokens: tuple[int, ...]
    logits: Tensor  # [m, V], ids that both models have
    states: Tensor  # [m, d], after the final norm
    stopped: bool  # the last token is a stop id


@dataclass
class LookaheadDraft:
    """The model with its cache and its engine.

    The tokens are those that the model alone would choose: greedy ones, or its own draws when sampling, of which a
    phrase foretells some.
    """

    decoder: Decoder
    engine: LookaheadEngine
    max_rows: int  # behind the last token in one pass
    take_perfect_bonus: bool
    keeps_past: bool = False  # the states of all that was read, for a controller that looks back
    past: Past | None = field(init=False, default=None)
    _cache: KVCache | None = field(init=False, default=None)
    _request: Request | None = field(init=False, default=None)

    @property
    def cache(self) -> KVCache:
        assert self._cache is not None, "begin comes first"
        return self._cache

    @property
    def request(self) -> Request:
        assert self._request is not None, "begin comes first"
        return self._request

    def begin(self, request: Request) -> None:
        """Read the prompt but its last token, and start a new window."""
        self._request = request
        committed = request.committed
        self._cache = self.decoder.reserve(self._cache, len(committed) + request.max_new_tokens + self.max_rows)
        known = self._known(committed[:-1])
        self.past = Past(self.decoder, self.cache) if self.keeps_past else None
        if self.past is None:
            fill(self.decoder, self.cache, known)
        else:
            self.past.fill(known)
        self.engine.begin(committed)

    def burst(self, unseen: Sequence[int], *, room: int) -> Burst:
        """At least one and at most `room` tokens after `unseen`, the tokens that are not in the cache yet."""
        plan = self.engine.plan(unseen[-1], depth=room)
        asked = [*range(1 + len(plan.trie)), *(row + 1 for row in plan.newest)]  # 0 = the last token
        logits, states, hidden = self._forward(unseen, plan, asked)
        best = logits.argmax(-1)
        self.engine.learn(best[1 + len(plan.trie) :].tolist())
        verdict = self._choose(plan, logits[: 1 + len(plan.trie)], best, room=room)
        count = len(verdict.tokens)
        rows = [0, *(row + 1 for row in verdict.rows)][:count]
        before = len(unseen) - 1
        kept = [*range(before), *(before + row for row in rows)]
        if self.past is not None:
            self.past.put(self.cache.length, self.decoder.final_norm(hidden[kept]))
        self.cache.keep(kept)
        return Burst(verdict.tokens, logits[rows], states[rows], verdict.stopped)

    def _choose(self, plan: Plan, logits: Tensor, best: Tensor, *, room: int) -> Verdict:
        """What the model itself says, as far as a phrase foretold it, cut at stop ids and at `room`."""
        draft = Draft(
            tokens=torch.tensor(plan.trie.tokens, dtype=torch.int64),
            parents=plan.trie.parents,
            leaf_bonus=self.take_perfect_bonus or room < self.engine.pool.length,
        )
        request = self.request
        result = VerifyResult(logits=logits, argmax=best)
        verdict = verify(draft, result, sampling=request.sampling, draws=request.draws, rule="sample_match")
        return cut(verdict, stop_ids=request.stop_ids, budget=room)

    def _forward(self, unseen: Sequence[int], plan: Plan, asked: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [n, V] and states [n, d] of the `asked` rows, counted from the last unseen token; and the residual
        stream [T, d] of all rows."""
        before = len(unseen) - 1
        parents = (*range(-1, before - 1), *(before + parent for parent in plan.parents))
        mask, depth = ancestor_mask(parents, self.decoder.device)
        ids = torch.tensor([list(self._known([*unseen, *plan.tokens]))], device=self.decoder.device)
        start = self.cache.length
        out = self.decoder.forward(ids, self.cache, start=start, positions=depth + start, mask=mask, logits="none")
        rows = torch.tensor(asked, device=self.decoder.device) + before
        states = self.decoder.final_norm(out.hidden[0, rows])
        shared = self.request.target.decoder.spec.vocab_size
        return self.decoder.head(states)[:, :shared], states, out.hidden[0]

    def _known(self, tokens: Sequence[int]) -> Sequence[int]:
        return readable(tokens, self.decoder, target=self.request.target.decoder)
