"""Lookahead decoding without a model: the window that makes phrases, the pool, and the rows of the next pass.

Source: Fu et al. 2024 and its code. Whoever owns a decoder and a cache runs `plan` through it and tells `learn` the
answers: `method=lookahead` the target, Ouroboros its draft.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from specbench.methods.phrases import Phrase, PhrasePool, Trie, merge


class Window:
    """Guesses of the tokens ahead in `level` - 1 rows; row r holds the guesses after r rounds of parallel decoding.

    A round gives the newest row's successor. The first level - 2 rounds add it as a row, later ones read a phrase of
    level - 1 tokens down every column and drop the oldest row. Every round moves the window one position ahead.
    """

    def __init__(self, width: int, level: int) -> None:
        self.width, self.level = width, level
        self.rows: list[list[int]] = []

    def begin(self, first_row: Sequence[int]) -> None:
        """Start anew with width + level - 3 guesses of any kind."""
        if len(first_row) != self.width + self.level - 3:
            raise ValueError(f"a first row of {len(first_row)} tokens instead of {self.width + self.level - 3}")
        self.rows = [list(first_row)]

    @property
    def full(self) -> bool:
        return len(self.rows) == self.level - 1

    @property
    def tokens(self) -> list[int]:
        return [token for row in self.rows for token in row]

    def parents(self, offset: int) -> Iterator[int]:
        """Parent of every token when the window's rows start at `offset`; -1 = the last token of the context.

        Row 0 is a chain after the last token. Column i of the other rows continues row 0 after its first i tokens.
        """
        first = range(offset, offset + len(self.rows[0]))
        above: Sequence[int] = (-1, *first)
        yield from above[: len(first)]
        start = first.stop
        for row in self.rows[1:]:
            yield from above[: len(row)]
            above = range(start, start + len(row))
            start += len(row)

    def advance(self, last: int, answers: Sequence[int]) -> list[tuple[int, Phrase]]:
        """Take in the `answers` to the newest row; returns the phrases found, with the token before each.

        `last` is the token before the window.
        """
        if not self.full:
            skip = 0 if len(self.rows) == 1 else 1  # row 0 begins one wider than what is computed from it
            self.rows = [*(row[1:] for row in self.rows), list(answers[skip:])]
            return []
        found = list(zip([last, *self.rows[0]], zip(*self.rows[1:], answers, strict=True), strict=True))
        self.rows = [self.rows[1][1:], *self.rows[2:], list(answers)]
        return found


@dataclass(frozen=True)
class Plan:
    """Rows to run behind the last token (parent -1): `trie` first, then the window. `newest`: its newest row."""

    trie: Trie
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    newest: range

    @property
    def passengers(self) -> int:
        return len(self.tokens) - len(self.trie)


@dataclass
class LookaheadEngine:
    """A window and a pool. The window starts with tokens drawn from the prompt by a generator of its own."""

    window: Window
    pool: PhrasePool
    seed: int
    _last: int = field(init=False, default=-1)

    @classmethod
    def of(cls, *, level: int, window: int, guess_set: int, seed: int) -> LookaheadEngine:
        return cls(Window(window, level), PhrasePool(level - 1, guess_set), seed)

    def begin(self, prompt: Sequence[int]) -> None:
        """A new prompt: a new window; the pool stays."""
        choice = random.Random(self.seed).choice
        self.window.begin([choice(prompt) for _ in range(self.window.width + self.window.level - 3)])

    def plan(self, last: int, *, depth: int) -> Plan:
        """What to run behind `last`: its phrases, cut to `depth` tokens, once the window is full; and the window."""
        self._last = last
        trie = merge(self.pool.newest(last) if self.window.full else (), depth=depth)
        tokens = (*trie.tokens, *self.window.tokens)
        parents = (*trie.parents, *self.window.parents(len(trie)))
        return Plan(trie, tokens, parents, range(len(tokens) - len(self.window.rows[-1]), len(tokens)))

    def learn(self, answers: Sequence[int]) -> None:
        """Take in the model's answers to the newest row of the last plan."""
        for token, phrase in self.window.advance(self._last, answers):
            self.pool.add(token, phrase)
