"""KnapSpec's search for skip sets: a knapsack over sublayers, all budgets of a row evaluated in one batched call.

Cell (i, j) is a state of the window after i sublayers with skipped weight j. Its value is how close (cosine) that state
is to the full model's after the same sublayer. One state survives per cell, so this is a beam, not an exact optimum.
Parents are explicit integers; only the current row of states is kept: memory O(K r d) for states, O(L K) for parents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from specbench.decoding.target import most_likely
from specbench.models.decoder import Decoder
from specbench.models.kv_cache import KVCache

FIRST = 2  # the first layer's two sublayers are always kept, and so are the last layer's
_SCORE_ELEMENTS = 2**23  # attention scores of one call; bounds its memory at long contexts
_HEAD_ROWS = 256  # rows of one call of the output head


class Weights(NamedTuple):
    """Integer costs of an attention and of an MLP sublayer."""

    attention: int
    mlp: int

    def of(self, index: int) -> int:
        return self.mlp if index % 2 else self.attention

    def total(self, num_layers: int) -> int:
        return num_layers * (self.attention + self.mlp)


@dataclass(frozen=True)
class Window:
    """The last r verified positions as the full model saw them.

    `states` [2L - 1, r, d] is the residual stream after sublayers 1..2L-1, `start` the cache slot of the first row.
    """

    states: Tensor
    start: int

    @property
    def rows(self) -> int:
        return self.states.shape[1]

    def after(self, index: int) -> Tensor:
        """[r, d] after sublayer `index` >= 1."""
        return self.states[index - 1]

    def last(self, rows: int) -> Window:
        """The window of the last `rows` positions."""
        dropped = max(0, self.rows - rows)
        return Window(self.states[:, dropped:], self.start + dropped)


@dataclass(frozen=True)
class Problem:
    """What is searched: at most `budget` skipped weight, cells with a mean cosine below `threshold` are dropped.

    `max_branches`: at most so many cells of a row survive, evenly spaced over the skipped weight (None = all).
    """

    weights: Weights
    budget: int
    threshold: float
    max_branches: int | None = None


@dataclass(frozen=True)
class Candidates:
    """The last row of the table, ascending in skipped weight; `states` [C, r, d] are the candidates' last states."""

    used: tuple[int, ...]
    skips: tuple[frozenset[int], ...]
    scores: tuple[float, ...]  # summed cosine over the window
    states: Tensor
    rows: tuple[dict[int, float], ...]  # skipped weight -> score of the occupied cells after 3, 4, .., 2L sublayers
    evaluations: int  # (branch, sublayer) executions

    def __len__(self) -> int:
        return len(self.used)


class _Cell(NamedTuple):
    score: float
    source: int  # place of the parent in the previous row
    skipped: bool


@dataclass
class Table:
    """The current row of the table, and how every earlier cell came about."""

    states: Tensor  # [B, r, d]
    used: list[int] = field(default_factory=lambda: [0])
    # one entry a sublayer: skipped weight -> (skipped weight before, skipped)
    parents: list[dict[int, tuple[int, bool]]] = field(default_factory=list)
    rows: list[dict[int, float]] = field(default_factory=list)
    evaluations: int = 0

    def advance(self, executed: Tensor, reference: Tensor, problem: Problem, weight: int | None) -> None:
        """Fill the next row from `executed` [B, r, d], and from the states as they are where `weight` may be skipped.

        Executing wins ties: a later entry must be strictly better.
        """
        lowest, best = problem.threshold * reference.shape[0], dict[int, _Cell]()
        for place, score in enumerate(cosine_sums(executed, reference)):
            if score >= lowest:
                best[self.used[place]] = _Cell(score, place, skipped=False)
        if weight is not None:
            for place, score in enumerate(cosine_sums(self.states, reference)):
                used = self.used[place] + weight
                better = used not in best or score > best[used].score
                if used <= problem.budget and score >= lowest and better:
                    best[used] = _Cell(score, place, skipped=True)
        self.evaluations += len(self.used)
        self._replace(best, executed, problem.max_branches)

    def _replace(self, best: dict[int, _Cell], executed: Tensor, most: int | None) -> None:
        used = _spread(sorted(best), most)
        cells = [best[weight] for weight in used]
        # Both branches lie in one tensor, so that a row is one gather.
        source = [cell.source + (len(self.used) if cell.skipped else 0) for cell in cells]
        index = torch.tensor(source, dtype=torch.int64, device=executed.device)
        self.states = torch.cat([executed, self.states]).index_select(0, index)
        self.parents.append(
            {weight: (self.used[cell.source], cell.skipped) for weight, cell in zip(used, cells, strict=True)}
        )
        self.rows.append({weight: cell.score for weight, cell in zip(used, cells, strict=True)})
        self.used = used

    def skip_set(self, used: int) -> frozenset[int]:
        """The sublayers that the path to a cell of the last row left out."""
        skip = set()
        for step in range(len(self.parents) - 1, -1, -1):
            used, skipped = self.parents[step][used]
            if skipped:
                skip.add(step + FIRST)
        return frozenset(skip)


def search(decoder: Decoder, cache: KVCache, window: Window, problem: Problem) -> Candidates:
    """Every occupied cell of the last row; empty when all were pruned. Committed cache rows are only read."""
    last = decoder.num_sublayers - 1
    table = Table(window.after(FIRST - 1)[None])
    for index in range(FIRST, last + 1):
        if not table.used:
            break
        executed = table.states + _outputs(decoder, cache, index, table.states, window.start)
        weight = problem.weights.of(index) if index < last - 1 else None
        table.advance(executed, window.after(index), problem, weight)
    return Candidates(
        used=tuple(table.used),
        skips=tuple(table.skip_set(used) for used in table.used),
        scores=tuple(table.rows[-1][used] for used in table.used),
        states=table.states,
        rows=tuple(table.rows),
        evaluations=table.evaluations,
    )


def acceptance(decoder: Decoder, candidates: Candidates, window: Window) -> list[int]:
    """At how many window positions each candidate's most likely next token is the full model's."""
    reference = top1(decoder, window.states[-1:])
    return (top1(decoder, candidates.states) == reference).sum(-1).tolist()


def top1(decoder: Decoder, states: Tensor) -> Tensor:
    """[C, r] most likely ids of last states [C, r, d]; the logits are never all there at once."""
    flat = states.reshape(-1, states.shape[-1])
    found = [most_likely(decoder.head(decoder.final_norm(part)))[1] for part in flat.split(_HEAD_ROWS)]
    return torch.cat(found).view(states.shape[:-1])


def cosine_sums(states: Tensor, reference: Tensor) -> list[float]:
    """For states [B, r, d] the sum over r of the cosine with reference [r, d], computed in at least float32."""
    wide = states if states.dtype == torch.float64 else states.float()
    reference = reference.to(wide.dtype)
    dots = torch.linalg.vecdot(wide, reference)
    norms = torch.linalg.vector_norm(wide, dim=-1) * torch.linalg.vector_norm(reference, dim=-1)
    return [float(score) for score in (dots / norms.clamp_min(1e-8)).sum(-1).tolist()]


def integer_weights(attention_s: float, mlp_s: float, max_weight: int) -> Weights:
    """Latencies as small integers: the cheaper kind costs 1, the other its rounded multiple (half to even), capped."""
    ratio = max(attention_s, mlp_s) / min(attention_s, mlp_s)
    heavy = min(round(min(ratio, float(max_weight + 1))), max_weight)
    return Weights(heavy, 1) if attention_s > mlp_s else Weights(1, heavy)


def count_evaluations(num_sublayers: int, problem: Problem) -> dict[str, int]:
    """Branch executions of a search without pruning, by kind, and the candidates at its end."""
    used, counts = [0], {"attention": 0, "mlp": 0}
    for index in range(FIRST, num_sublayers):
        counts["mlp" if index % 2 else "attention"] += len(used)
        weight = problem.weights.of(index) if index < num_sublayers - 2 else 0
        reached = set(used) | {u + weight for u in used if u + weight <= problem.budget}
        used = _spread(sorted(reached), problem.max_branches)
    return counts | {"candidates": len(used)}


def _spread(values: Sequence[int], most: int | None) -> list[int]:
    """At most `most` of the sorted values, evenly spaced, both ends included."""
    if most is None or len(values) <= most:
        return list(values)
    if most == 1:
        return [values[-1]]
    step = (len(values) - 1) / (most - 1)
    return [values[round(place * step)] for place in range(most)]


def _outputs(decoder: Decoder, cache: KVCache, index: int, states: Tensor, start: int) -> Tensor:
    """The sublayer's outputs [B, r, d], attention in chunks of branches."""
    branches, rows = states.shape[:2]
    size = branches
    if index % 2 == 0:
        size = max(1, _SCORE_ELEMENTS // (rows * decoder.spec.num_heads * (start + rows)))
    return torch.cat([decoder.sublayer(index, part, cache, start) for part in states.split(size)])
