"""An index of n-grams over a growing sequence, kept on the host: looking up costs the same at any context."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

_CANDIDATES = 32  # occurrences compared by `longest`; the most recent ones


@dataclass(frozen=True)
class Hit:
    """Where a continuation starts, and how many tokens before it agree with the end of the sequence."""

    position: int
    size: int


class NgramIndex:
    """Where every n-gram of min_n..max_n tokens was followed by something.

    Only occurrences that a later token follows are in the index, so the end of the sequence never finds itself.
    """

    def __init__(self, min_n: int, max_n: int) -> None:
        self._sizes = range(max_n, min_n - 1, -1)
        self.tokens: list[int] = []
        self._places: dict[tuple[int, ...], list[int]] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens; an n-gram enters the index when the token after it arrives."""
        for token in tokens:
            end = len(self.tokens)
            for size in self._sizes:
                if size <= end:
                    self._places.setdefault(tuple(self.tokens[end - size :]), []).append(end)
            self.tokens.append(token)

    def find(self, match: str, *, continuation: int = 1) -> Hit | None:
        """A place where the last tokens stood before and at least `continuation` tokens followed.

        `first` and `last` take the earliest or the latest place of the longest n-gram that has one; `longest` takes
        the place whose past agrees with the end of the sequence over the most tokens (the latest of equals).
        """
        latest = len(self.tokens) - continuation
        sizes = self._sizes[-1:] if match == "longest" else self._sizes
        for size in sizes:
            places = self._places.get(tuple(self.tokens[-size:]), []) if size <= len(self.tokens) else []
            usable = bisect.bisect_right(places, latest)
            if usable and match == "longest":
                return self._longest(places[max(0, usable - _CANDIDATES) : usable])
            if usable:
                return Hit(places[0 if match == "first" else usable - 1], size)
        return None

    def _longest(self, places: Sequence[int]) -> Hit:
        return max((Hit(place, self._agreement(place)) for place in places), key=lambda hit: (hit.size, hit.position))

    def _agreement(self, place: int, limit: int = 32) -> int:
        end = len(self.tokens)
        size = 0
        while size < min(place, limit) and self.tokens[place - 1 - size] == self.tokens[end - 1 - size]:
            size += 1
        return size
