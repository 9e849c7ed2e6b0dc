"""A random language over few tokens, and drafts from it whose verification can be enumerated exactly."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scripts.golden.enumeration import BranchDraws, all_sequences, continued, distribution
from specbench.decoding.sampling import probabilities
from specbench.decoding.verification import verify
from specbench.types import Draft, Sampling, Verdict, VerifyResult

PLAIN = Sampling(temperature=1.0)
POINT = -1  # a row whose token is certain; any other number groups siblings drawn from one distribution


@dataclass(frozen=True)
class Language:
    """Logits for every prefix, of a target (`p`) and of several drafts (`q0`, `q1`, ...), all unlike each other."""

    vocab: int
    seed: int = 0
    sampling: Sampling = PLAIN

    @functools.cache  # noqa: B019  (a handful of languages live through the tests)
    def logits(self, name: str, prefix: tuple[int, ...]) -> Tensor:
        number = functools.reduce(lambda a, b: a * (self.vocab + 1) + b + 1, prefix, 0)
        seed = 7919 * number + 31 * self.seed + sum(map(ord, name))
        return 1.5 * torch.randn(self.vocab, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    def probs(self, name: str, prefix: Sequence[int]) -> Tensor:
        return probabilities(self.logits(name, tuple(prefix)), self.sampling)

    def joint(self, length: int) -> dict[tuple[int, ...], float]:
        """The target's own distribution over sequences of `length` tokens."""
        return {
            sequence: float(
                torch.stack([self.probs("p", sequence[:i])[token] for i, token in enumerate(sequence)]).prod()
            )
            for sequence in all_sequences(self.vocab, length)
        }


@dataclass(frozen=True)
class Shape:
    """What a drafter does: `rows` = (parent row, source) in order, and how many passengers and bonus it declares."""

    rows: tuple[tuple[int, int], ...]
    passengers: int = 0
    leaf_bonus: bool = True

    def path(self, row: int, tokens: Sequence[int]) -> tuple[int, ...]:
        path: tuple[int, ...] = ()
        while row >= 0:
            path, row = (tokens[row], *path), self.rows[row][0]
        return path

    @property
    def depth(self) -> int:
        return max((len(self.path(row, [0] * len(self.rows))) for row in range(len(self.rows))), default=0)


def drafted(language: Language, shape: Shape, draws: BranchDraws) -> Draft | None:
    """Draw the rows of `shape`; None where a draft distribution has too little support for so many siblings."""
    tokens: list[int] = []
    q: dict[tuple[int, int], Tensor] = {}
    taken: dict[tuple[int, int], list[int]] = {}
    for row, (parent, source) in enumerate(shape.rows):
        path = shape.path(parent, tokens)
        if source == POINT:
            tokens.append((sum(path) + row) % language.vocab)
            continue
        key = (parent, source)
        left = q.setdefault(key, language.probs(f"q{source}", path)).clone()
        left[taken.setdefault(key, [])] = 0.0
        if float(left.sum()) == 0.0:
            return None
        tokens.append(draws.categorical(left))
        taken[key].append(tokens[-1])
    places = {key: place for place, key in enumerate(q)}
    return Draft(
        tokens=torch.tensor(tokens, dtype=torch.int64),
        parents=tuple(parent for parent, _ in shape.rows),
        q=torch.stack(list(q.values())) if q else None,
        q_row=tuple(places.get(key, -1) for key in shape.rows) if q else None,
        passengers=shape.passengers,
        leaf_bonus=shape.leaf_bonus,
    )


def verified(language: Language, shape: Shape, rule: str, draws: BranchDraws) -> Verdict:
    """Draft, then verify against the target's answers for every row."""
    draft = drafted(language, shape, draws)
    if draft is None:
        draft = Draft(tokens=torch.empty(0, dtype=torch.int64))
        shape = Shape(())
    tokens = draft.tokens.tolist()
    logits = torch.stack([language.logits("p", shape.path(row, tokens)) for row in range(-1, len(tokens))])
    return verify(draft, VerifyResult(logits=logits), sampling=language.sampling, draws=draws, rule=rule)


def emitted_joint(language: Language, shape: Shape, rule: str) -> tuple[dict[tuple[int, ...], float], int]:
    """The exact joint distribution of the next tokens when a step is followed by the target alone, and its length."""
    length = shape.depth + 1
    outputs = distribution(lambda draws: verified(language, shape, rule, draws).tokens)
    return continued(outputs, length, lambda prefix: language.probs("p", prefix).tolist()), length
