"""The pool of phrases, phrases as a tree, and the window that finds them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.methods.lookahead_engine import LookaheadEngine, Window
from specbench.methods.phrases import PhrasePool, merge
from specbench.models.decoder import ancestor_mask

PHRASES = st.lists(st.tuples(*[st.integers(0, 2)] * 3), max_size=8)


def test_a_pool_keeps_the_newest_phrases_in_order() -> None:
    pool = PhrasePool(length=2, per_token=3)
    for phrase in [(1, 1), (2, 2), (3, 3), (1, 1), (4, 4)]:
        pool.add(7, phrase)
    assert pool.contents() == {7: [(3, 3), (1, 1), (4, 4)]}
    assert pool.newest(7, 2) == [(1, 1), (4, 4)]
    assert pool.newest(7, 0) == pool.newest(8) == []


def test_seeing_a_phrase_again_drops_none() -> None:
    pool = PhrasePool(length=1, per_token=2)
    for token in (1, 2, 1):
        pool.add(0, (token,))
    assert pool.newest(0) == [(2,), (1,)]


def test_rewriting_keeps_places() -> None:
    pool = PhrasePool(length=1, per_token=4)
    for token in (1, 2, 3):
        pool.add(0, (token,))
    pool.rewrite_newest(0, [(9,), (3,)])
    assert pool.newest(0) == [(1,), (9,), (3,)]
    assert len(pool) == 3


def test_only_whole_phrases_enter() -> None:
    with pytest.raises(ValueError, match="a phrase of 3 tokens in a pool of phrases of 2"):
        PhrasePool(length=2, per_token=2).add(0, (1, 2, 3))


@given(st.lists(st.tuples(st.integers(0, 1), st.tuples(st.integers(0, 3), st.integers(0, 1)))))
def test_a_pool_is_bounded_and_ordered_by_last_use(adds: list[tuple[int, tuple[int, int]]]) -> None:
    pool = PhrasePool(length=2, per_token=3)
    for token, phrase in adds:
        pool.add(token, phrase)
    for token in (0, 1):
        latest = dict.fromkeys(phrase for key, phrase in reversed(adds) if key == token)
        assert pool.newest(token) == list(latest)[:3][::-1]


@given(PHRASES, st.integers(0, 4))
def test_a_tree_holds_every_phrase_and_shares_beginnings(phrases: list[tuple[int, ...]], depth: int) -> None:
    trie = merge(phrases, depth=depth)
    assert len(trie) == len({phrase[: i + 1] for phrase in phrases for i in range(min(depth, 3))})
    for phrase, path in zip(phrases, trie.paths, strict=True):
        assert tuple(trie.tokens[row] for row in path) == phrase[:depth]
        assert [trie.parents[row] for row in path] == [-1, *path][: len(path)]


# ---- the window, against a program over positions instead of rows


def successor(context: tuple[int, ...]) -> int:
    """A model: any function of everything that a row sees."""
    return random.Random(repr(context)).randrange(5)


def answers_of(window: Window, last: int) -> list[int]:
    """What the model says after each token of the newest row, each row seeing its ancestors."""
    parents, tokens = list(window.parents(0)), window.tokens

    def context(row: int) -> tuple[int, ...]:
        return (last,) if row < 0 else (*context(parents[row]), tokens[row])

    newest = range(len(tokens) - len(window.rows[-1]), len(tokens))
    return [successor(context(row)) for row in newest]


@pytest.mark.parametrize(("width", "level"), [(4, 5), (1, 3), (3, 3), (6, 4), (2, 7)])
def test_rows_see_and_stand_where_the_source_says(width: int, level: int) -> None:
    """Row 0 column i at position 1 + i, row r at r + i; column i sees row 0 before it, and itself in rows 1..r."""
    window = Window(width, level)
    window.begin(list(range(width + level - 3)))
    for turn in range(level + 2):
        sizes = [len(row) for row in window.rows]
        place = {(r, i): sum(sizes[:r]) + i + 1 for r, size in enumerate(sizes) for i in range(size)}
        mask, depth = ancestor_mask(tuple(window.parents(0)), "cpu")  # type: ignore[arg-type]
        for (r, i), row in place.items():
            seen = {0} | {place[0, k] for k in range(i + (r == 0))} | {place[k, i] for k in range(1, r + 1)}
            assert set(mask[row].nonzero()[:, 0].tolist()) == seen
            assert int(depth[row]) == (1 + i if r == 0 else r + i)
        window.advance(0, answers_of(window, last=turn))


@pytest.mark.parametrize(("width", "level"), [(4, 5), (1, 3), (3, 3), (6, 4)])
def test_the_window_fills_then_gives_a_phrase_a_column(width: int, level: int) -> None:
    window = Window(width, level)
    window.begin([1] * (width + level - 3))
    for _ in range(level - 2):
        assert not window.full
        assert window.advance(0, answers_of(window, 0)) == []
    for turn in range(3):
        assert window.full
        assert [len(row) for row in window.rows] == [width - 1] + [width] * (level - 2)
        keys = [turn, *window.rows[0]]
        columns = [list(column) for column in zip(*window.rows[1:], strict=True)]
        answers = answers_of(window, turn)
        found = window.advance(turn, answers)
        assert found == [(key, (*column, answer)) for key, column, answer in zip(keys, columns, answers, strict=True)]


def test_phrases_are_what_the_model_would_write() -> None:
    """With a model that looks at one token only, every phrase found is the model's own continuation of its key."""

    def following(token: int) -> int:
        return (3 * token + 1) % 11

    window = Window(5, 4)
    window.begin([2, 9, 4, 4, 7, 1])
    found = []
    for _ in range(8):
        found += window.advance(3, [following(token) for token in window.rows[-1]])
    assert len(found) == 6 * 5
    assert all(phrase[i + 1] == following(phrase[i]) for _, phrase in found for i in range(2))
    inside = [pair for column, pair in enumerate(found) if column % 5]  # the others follow the context's last token
    assert all(phrase[0] == following(key) for key, phrase in inside)


def test_the_first_window_comes_from_the_prompt_by_a_generator_of_its_own() -> None:
    state = random.getstate()
    engine = LookaheadEngine.of(level=5, window=7, guess_set=7, seed=10)
    engine.begin([5, 6, 7])
    rows = engine.window.rows
    assert random.getstate() == state
    assert set(rows[0]) <= {5, 6, 7}
    engine.begin([5, 6, 7])
    assert engine.window.rows == rows


def test_phrases_are_tried_once_the_window_is_full() -> None:
    engine = LookaheadEngine.of(level=4, window=3, guess_set=2, seed=0)
    engine.begin([1])
    for phrase in [(1, 2, 3), (1, 2, 4)]:
        engine.pool.add(9, phrase)
    tries = []
    for _ in range(3):
        plan = engine.plan(9, depth=2)
        tries.append(len(plan.trie))
        assert len(plan.tokens) == len(plan.parents) == len(plan.trie) + plan.passengers
        assert [plan.tokens[row] for row in plan.newest] == engine.window.rows[-1]
        engine.learn([0] * len(plan.newest))
    assert tries == [0, 0, 2]
