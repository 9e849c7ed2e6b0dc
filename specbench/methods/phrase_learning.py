"""What Ouroboros learns from a verification: phrases that the target itself would write. Two published rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.methods.phrases import Phrase, PhrasePool, Trie


@dataclass(frozen=True)
class Verified:
    """A draft of n tokens with the phrases after it, and what the target answered.

    `answers[0]` is the target's token after the context, `answers[1 + i]` the one after row i; the rows are the draft
    and then those of `trie`, whose phrases are whole. The first `accepted` draft tokens were right.
    """

    tokens: Sequence[int]
    trie: Trie
    answers: Sequence[int]
    accepted: int

    @property
    def following(self) -> Sequence[int]:
        """[n] the target's token after each draft token."""
        return self.answers[1 : 1 + len(self.tokens)]

    def corrected(self) -> list[Phrase]:
        """Every phrase as the target would have it, each token given those that were proposed before it."""
        return [(self.answers[len(self.tokens)], *after[:-1]) for after in self.after_phrases()]

    def after_phrases(self) -> list[Phrase]:
        """Of every phrase the target's token after each of its tokens."""
        rows = self.answers[1 + len(self.tokens) :]
        return [tuple(rows[row] for row in path) for path in self.trie.paths]


def learn_library(pool: PhrasePool, step: Verified) -> None:
    """The library's rule.

    After full acceptance the phrases that were tried are replaced by their corrected versions. After a rejection the
    target's continuation of every rejected draft token is stored, where the draft agrees with it long enough; and of
    every `length` phrases tried one corrected version is written, the first ones to the newest places: as published,
    where a count is divided once too often.
    """
    corrected = step.corrected()
    if step.accepted < len(step.tokens):
        for place in range(step.accepted, len(step.tokens)):
            phrase = _agreed(step, place, pool.length)
            if phrase is not None:
                pool.add(step.tokens[place], phrase)
        corrected = corrected[: len(corrected) // pool.length]
    pool.rewrite_newest(step.tokens[-1], corrected)


def _agreed(step: Verified, place: int, length: int) -> Phrase | None:
    """The target's `length` tokens after draft token `place`; None where they are not known."""
    answers, drafted = step.following[place : place + length], step.tokens[place + 1 : place + length]
    known = len(answers) == length and tuple(answers[:-1]) == tuple(drafted)
    return tuple(answers) if known else None


def learn_spec_bench(pool: PhrasePool, step: Verified) -> None:
    """The rule of the copy in Spec-Bench.

    After a rejection the target's answers from there to the draft's end and one beyond count as text, continued by its
    answers along each phrase; every token of that text is stored with what follows.
    """
    if step.accepted == len(step.tokens):
        return
    text = tuple(step.answers[step.accepted : len(step.tokens) + 1])
    for place, token in enumerate(text):
        following = text[place + 1 : place + 1 + pool.length]
        missing = pool.length - len(following)
        for tail in step.after_phrases() if missing else [()]:
            pool.add(token, (*following, *tail[:missing]))
