"""Training prompts that share wording with a benchmark's prompts are found by n-grams of words and left out.

n = 13 as in the contamination analysis of GPT-3 (Brown et al. 2020, arXiv:2005.14165, appendix C).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

WORDS = 13
# A line that so many prompts of one task share is the task's instruction, not the content of a prompt.
_SHARED_SHARE, _SHARED_COUNT = 0.1, 3

Ngram = tuple[str, ...]


def ngrams(text: str, size: int = WORDS) -> set[Ngram]:
    """The runs of `size` lower-case words in a text; of a shorter text all its words, so that equal ones are found."""
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + size]) for i in range(max(1, len(words) - size + 1))} - {()}


def instruction_lines(prompts: Sequence[str]) -> set[str]:
    """The lines that many of a task's prompts share."""
    counts = Counter(line for prompt in prompts for line in set(_lines(prompt)))
    limit = max(_SHARED_COUNT, _SHARED_SHARE * len(prompts))
    return {line for line, count in counts.items() if count >= limit}


@dataclass(frozen=True)
class Benchmarks:
    """What training prompts must not contain: the n-grams of benchmark prompts without their instructions' lines."""

    ngrams: frozenset[Ngram]
    instructions: frozenset[str]

    @classmethod
    def of(cls, tasks: Iterable[Sequence[str]]) -> Benchmarks:
        """Several tasks, each given as its prompts."""
        found: set[Ngram] = set()
        instructions: set[str] = set()
        for prompts in tasks:
            shared = instruction_lines(prompts)
            instructions |= shared
            for prompt in prompts:
                found |= ngrams(_without(prompt, shared))
        return cls(frozenset(found), frozenset(instructions))

    def overlap(self, text: str) -> bool:
        """Whether a text shares an n-gram with a benchmark, its own instruction not counted."""
        return not self.ngrams.isdisjoint(ngrams(_without(text, self.instructions)))


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _without(text: str, lines: Collection[str]) -> str:
    return "\n".join(line for line in _lines(text) if line not in lines)
