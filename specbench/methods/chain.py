"""Drafting a chain token by token, block by block, with any controller: shared by all model-based drafters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specbench.decoding.loop import empty_draft
from specbench.decoding.protocol import Block, Controller, Request
from specbench.decoding.sampling import probabilities
from specbench.types import Draft

_TOPK = 10

# Draft ids to feed [1, n] -> (logits of the last row [V_draft], normed hidden state of it [d]).
Forward = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass
class ChainDrafter:
    """Runs `forward` until the controller, a stop id or the budget ends the chain.

    `vocab_size` is the target's; draft logits beyond it are dropped and missing ones count as probability 0.
    """

    controller: Controller
    vocab_size: int
    request: Request
    _tokens: list[int] = field(default_factory=list)
    _q: list[Tensor] = field(default_factory=list)

    def draft(self, forward: Forward, feed: Sequence[int], *, budget: int) -> Draft:
        """A chain of at most `budget` tokens after `feed`, whose last token is the root."""
        cap = min(budget, self.controller.start_step(budget))
        if cap <= 0:
            return empty_draft("budget" if budget <= 0 else "controller")
        reason, following = "cap", torch.tensor([list(feed)], device=self.request.target.decoder.device)
        while len(self._tokens) < cap:
            size = min(self.controller.block_size, cap - len(self._tokens))
            block, following, stopped = self._block(forward, following, size)
            if stopped or not self.controller.more(block):
                reason = "stop_id" if stopped else "controller"
                break
        return self._finished(reason)

    def _block(self, forward: Forward, feed: Tensor, size: int) -> tuple[Block, Tensor, bool]:
        first, logits, states, drafted = len(self._tokens), [], [], []
        for _ in range(size):
            row, state = forward(feed)
            token, q = self._pick(row)
            feed = token[None, None]
            logits.append(row)
            states.append(state)
            drafted.append((token, q))
        tokens = torch.stack([token for token, _ in drafted]).tolist()  # the block's one host sync
        stop = next((i for i, token in enumerate(tokens) if token in self.request.stop_ids), None)
        if stop is not None:
            tokens = tokens[: stop + 1]
        self._tokens += tokens
        self._q += [q for _, q in drafted[: len(tokens)] if q is not None]
        return self._signals(first, tokens, logits[: len(tokens)], states[: len(tokens)]), feed, stop is not None

    def _pick(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        shared = logits[: self.vocab_size]
        if self.request.sampling.greedy:
            return shared.argmax(), None
        q = probabilities(shared, self.request.sampling)
        q = torch.nn.functional.pad(q, (0, self.vocab_size - q.shape[0]))
        return torch.tensor(self.request.draws.categorical(q), device=logits.device), q

    def _signals(self, first: int, tokens: list[int], logits: list[Tensor], states: list[Tensor]) -> Block:
        wanted = self.controller.signals
        if not wanted:
            return Block(first, tokens)
        rows = torch.stack(logits)[:, : self.vocab_size]
        sampling = self.request.sampling
        log_p = rows.log_softmax(-1) if sampling.greedy else probabilities(rows, sampling).log()
        index = torch.tensor(tokens, device=rows.device)[:, None]
        top = rows.topk(2, dim=-1).values if "margin" in wanted else None
        return Block(
            first,
            tokens,
            prob=log_p.gather(1, index)[:, 0].exp() if "prob" in wanted else None,
            entropy=-(log_p.exp() * log_p).nan_to_num(0.0).sum(-1) if "entropy" in wanted else None,
            margin=top[:, 0] - top[:, 1] if top is not None else None,
            topk=log_p.topk(_TOPK, dim=-1).values.exp() if "topk" in wanted else None,
            hidden=torch.stack(states) if "hidden" in wanted else None,
        )

    def _finished(self, reason: str) -> Draft:
        count = len(self._tokens)
        return Draft(
            tokens=torch.tensor(self._tokens, device=self.request.target.decoder.device),
            q=torch.stack(self._q) if self._q else None,
            q_row=tuple(range(count)) if self._q else None,
            spine=count,
            info={"stop_reason": reason},
        )
