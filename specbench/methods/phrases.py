"""Phrases that may follow a token: the pool that holds them, and how several are merged into one tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Phrase = tuple[int, ...]


class PhrasePool:
    """Token -> at most `per_token` phrases of `length` tokens, oldest first."""

    def __init__(self, length: int, per_token: int) -> None:
        self.length, self.per_token = length, per_token
        self._phrases: dict[int, list[Phrase]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._phrases.values()))

    def add(self, token: int, phrase: Phrase) -> None:
        """Make `phrase` the newest after `token`; the oldest one goes where there are too many."""
        if len(phrase) != self.length:
            raise ValueError(f"a phrase of {len(phrase)} tokens in a pool of phrases of {self.length}")
        known = self._phrases.setdefault(token, [])
        if phrase in known:
            known.remove(phrase)
        elif len(known) == self.per_token:
            known.pop(0)
        known.append(phrase)

    def newest(self, token: int, count: int | None = None) -> list[Phrase]:
        """The `count` newest phrases after `token` (all by default), oldest of them first."""
        known = self._phrases.get(token, [])
        return known[max(0, len(known) - count) :] if count is not None else list(known)

    def rewrite_newest(self, token: int, phrases: Sequence[Phrase]) -> None:
        """Put `phrases` in the places of as many of the newest ones; equal ones may then stand side by side."""
        if phrases:
            self._phrases[token][-len(phrases) :] = phrases

    def contents(self) -> dict[int, list[Phrase]]:
        """A copy of everything: token -> phrases, oldest first."""
        return {token: list(known) for token, known in self._phrases.items()}

    def clear(self) -> None:
        self._phrases.clear()


@dataclass(frozen=True)
class Trie:
    """Phrases after one token as a tree in which equal beginnings are one row; parent -1 = that token.

    `paths[j]` are the rows of phrase j. Verification follows the longest match of all phrases through it.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    paths: tuple[tuple[int, ...], ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)


def merge(phrases: Iterable[Phrase], *, depth: int) -> Trie:
    """The tree of `phrases`, each cut to `depth` tokens."""
    rows: dict[tuple[int, int], int] = {}  # (parent, token) -> row
    paths = []
    for phrase in phrases:
        path = [-1]
        for token in phrase[: max(0, depth)]:
            path.append(rows.setdefault((path[-1], token), len(rows)))
        paths.append(tuple(path[1:]))
    return Trie(tuple(token for _, token in rows), tuple(parent for parent, _ in rows), tuple(paths))
