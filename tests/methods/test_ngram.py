"""The n-gram index finds what the published scans find, at any moment of a growing sequence."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.methods.ngram import Hit, NgramIndex

TOKENS = st.lists(st.integers(0, 2), max_size=40)
PROPERTY = settings(deadline=None, derandomize=True)


def indexed(tokens: list[int], sizes: tuple[int, int], split: int) -> NgramIndex:
    """An index that got the tokens in two parts."""
    index = NgramIndex(*sizes)
    index.extend(tokens[:split])
    index.extend(tokens[split:])
    return index


def scan_whole(tokens: list[int], largest: int, count: int) -> list[int]:
    """Spec-Bench: sizes from large to small, left to right, all `count` tokens there and not inside the last n-gram."""
    for size in range(largest, 0, -1):
        for begin in range(len(tokens) - size + 1):
            start = begin + size
            inside = start + count <= len(tokens) and start < len(tokens) - size
            if tokens[begin:start] == tokens[len(tokens) - size :] and inside:
                return tokens[start : start + count]
    return []


def scan_clipped(tokens: list[int], largest: int, count: int) -> list[int]:
    """The transformers library: the first place with any continuation, clipped at the end."""
    for size in range(min(largest, len(tokens) - 1), 0, -1):
        for begin in range(len(tokens) - size + 1):
            start = begin + size
            end = min(start + count, len(tokens))
            if tokens[begin:start] == tokens[len(tokens) - size :] and start < end:
                return tokens[start:end]
    return []


def continuation(index: NgramIndex, hit: Hit | None, count: int) -> list[int]:
    return [] if hit is None else index.tokens[hit.position : hit.position + count]


@PROPERTY
@given(TOKENS, st.integers(1, 3), st.integers(4, 10), st.integers(0, 40))
def test_whole_continuations_as_in_spec_bench(tokens: list[int], largest: int, count: int, split: int) -> None:
    index = indexed(tokens, (1, largest), split)
    assert continuation(index, index.find("first", continuation=count), count) == scan_whole(tokens, largest, count)


@PROPERTY
@given(TOKENS, st.integers(1, 3), st.integers(1, 10), st.integers(0, 40))
def test_clipped_continuations_as_in_the_library(tokens: list[int], largest: int, count: int, split: int) -> None:
    index = indexed(tokens, (1, largest), split)
    assert continuation(index, index.find("first"), count) == scan_clipped(tokens, largest, count)


def places(tokens: list[int], size: int, continuation: int) -> list[int]:
    """Where the last `size` tokens stood before with so many tokens after them, by comparing everywhere."""
    tail = tokens[len(tokens) - size :]
    ends = range(size, len(tokens) - continuation + 1) if size <= len(tokens) else range(0)
    return [end for end in ends if tokens[end - size : end] == tail]


@PROPERTY
@given(TOKENS, st.integers(1, 3), st.integers(0, 2), st.integers(1, 6), st.integers(0, 40))
def test_last_takes_the_latest_place_of_the_longest_ngram(
    tokens: list[int], smallest: int, more: int, count: int, split: int
) -> None:
    index = indexed(tokens, (smallest, smallest + more), split)
    found = [(size, places(tokens, size, count)) for size in range(smallest + more, smallest - 1, -1)]
    expected = next((Hit(ends[-1], size) for size, ends in found if ends), None)
    assert index.find("last", continuation=count) == expected


@PROPERTY
@given(st.lists(st.integers(0, 1), max_size=30), st.integers(1, 2), st.integers(1, 3))
def test_longest_takes_the_place_with_the_longest_common_past(tokens: list[int], smallest: int, count: int) -> None:
    index = indexed(tokens, (smallest, smallest + 1), 0)

    def past(end: int) -> int:
        return next((size for size in range(end) if tokens[end - 1 - size] != tokens[-1 - size]), end)

    ends = places(tokens, smallest, count)
    expected = max(((past(end), end) for end in ends), default=None)
    assert index.find("longest", continuation=count) == (None if expected is None else Hit(expected[1], expected[0]))


def test_an_old_place_is_found_behind_many_recent_ones() -> None:
    """All recent places lack the long continuation that an old one has."""
    index = indexed([7] * 200, (1, 1), 0)
    assert index.find("last", continuation=100) == Hit(100, 1)
    assert index.find("longest", continuation=100) is not None


@pytest.mark.parametrize("match", ["first", "last", "longest"])
def test_nothing_is_found_in_nothing(match: str) -> None:
    assert indexed([], (1, 3), 0).find(match) is None
    assert indexed([4], (1, 3), 0).find(match) is None
    assert indexed([4, 5, 6], (1, 3), 0).find(match) is None
