"""Which draft tokens the target accepts: one pure function over tensors, for chains and trees.

Rules: greedy compares with the target's argmax. `rejection` accepts a draft token with min(1, p/q) and draws from
the residual (Leviathan et al. 2023, Chen et al. 2023); siblings drawn without replacement are tried in row order
(SpecTr, SpecInfer). `sample_match` lets the target draw and accepts the child that equals the draw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.decoding.sampling import Draws, probabilities
from specbench.types import ConfigError, Draft, Sampling, Verdict, VerifyResult

RULES = ("rejection", "sample_match")

# (row of the target's answer, its children among the draft rows) -> (accepted child or None, token drawn if None)
Choose = Callable[[int, Sequence[int]], tuple[int | None, int]]


def verify(draft: Draft, result: VerifyResult, *, sampling: Sampling, draws: Draws, rule: str = "rejection") -> Verdict:
    """Accept a path of `draft` by the target's answers in `result` and add the token that follows it.

    `result.argmax [T]` is read when greedy, `result.logits [T, V]` otherwise (T = draft rows + 1, root first).
    The emitted tokens are not cut at stop ids or at the budget; the loop does that.
    """
    if rule not in RULES:
        raise ConfigError(f"method.verification={rule!r} is not legal; choose one of {', '.join(RULES)}")
    tokens = [int(token) for token in draft.tokens.tolist()]
    rows, following = _walk(draft, _chooser(draft, tokens, result, (sampling, draws, rule)))
    emitted = [tokens[row] for row in rows] + ([] if following is None else [following])
    spine = draft.spine or 0
    return Verdict(
        rows=tuple(rows),
        tokens=tuple(emitted),
        num_accepted=len(rows),
        num_accepted_spine=sum(row < spine for row in rows),
        next_token=emitted[-1],
    )


def children_of(draft: Draft) -> list[list[int]]:
    """Child rows of every row that can be accepted, in row order; entry 0 belongs to the root, entry i+1 to row i."""
    real = len(draft) - draft.passengers
    children: list[list[int]] = [[] for _ in range(real + 1)]
    parents = range(-1, real - 1) if draft.parents is None else draft.parents[:real]
    for row, parent in enumerate(parents):
        children[parent + 1].append(row)
    return children


def _walk(draft: Draft, choose: Choose) -> tuple[list[int], int | None]:
    children = children_of(draft)
    rows: list[int] = []
    node = 0
    while True:
        if rows and not children[node] and not draft.leaf_bonus:
            return rows, None
        child, token = choose(node, children[node])
        if child is None:
            return rows, token
        rows.append(child)
        node = child + 1


def _chooser(draft: Draft, tokens: list[int], result: VerifyResult, how: tuple[Sampling, Draws, str]) -> Choose:
    sampling, draws, rule = how
    if sampling.greedy:
        assert result.argmax is not None
        argmax = result.argmax.tolist()
        return _matcher(tokens, lambda row: int(argmax[row]))
    assert result.logits is not None
    p = probabilities(result.logits[: len(draft) - draft.passengers + 1], sampling)
    if rule == "sample_match":
        return _matcher(tokens, lambda row: draws.categorical(p[row]))
    return _Rejection(draft, tokens, p, draws)


def _matcher(tokens: list[int], pick: Callable[[int], int]) -> Choose:
    def choose(row: int, children: Sequence[int]) -> tuple[int | None, int]:
        token = pick(row)
        return next((child for child in children if tokens[child] == token), None), token

    return choose


@dataclass
class _Rejection:
    draft: Draft
    tokens: list[int]
    p: Tensor  # [T, V]
    draws: Draws

    def __call__(self, row: int, children: Sequence[int]) -> tuple[int | None, int]:
        p = self.p[row]
        tried: dict[int, list[int]] = {}
        for child in children:
            token, source = self.tokens[child], self._source(child)
            q = self._proposal(source, tried.setdefault(source, []))
            if self.draws.bernoulli(_acceptance(p, q, token)):
                return child, token
            p = residual(p, q, token)
            tried[source].append(token)
        return None, self.draws.categorical(p)

    def _source(self, child: int) -> int:
        return -1 if self.draft.q_row is None else self.draft.q_row[child]

    def _proposal(self, source: int, tried: list[int]) -> Tensor | None:
        """The distribution a child was drawn from, given its earlier siblings; None = a point mass."""
        if source < 0:
            return None
        assert self.draft.q is not None
        q = self.draft.q[source].to(self.p.dtype)
        if not tried:
            return q
        q = q.index_fill(0, torch.tensor(tried, device=q.device), 0.0)
        return q / q.sum()


def _acceptance(p: Tensor, q: Tensor | None, token: int) -> float:
    if q is None:
        return float(p[token])
    return min(1.0, float(p[token]) / float(q[token]))


def residual(p: Tensor, q: Tensor | None, token: int) -> Tensor:
    """What is left of p [V] after a token drawn from q was rejected, normalised; p itself when nothing is left."""
    if q is None:
        left = p.index_fill(0, torch.tensor([token], device=p.device), 0.0)
    else:
        left = (p - q).clamp_min(0.0)
    total = left.sum()
    return left / total if float(total) > 0.0 else p
