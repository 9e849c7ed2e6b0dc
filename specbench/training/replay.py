"""Acceptance on held-out answers without decoding: a greedy chain is accepted exactly as far as the draft agrees.

While a chain is accepted its tokens are the answer's own, so one pass over the answer tells every chain's fate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specbench.decoding.teacher import first_choices
from specbench.models.decoder import Decoder
from specbench.training.corpus import Example


@dataclass(frozen=True)
class Acceptance:
    """Tokens drafted, accepted and emitted, and verify steps, of greedy speculation with chains of fixed length."""

    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    steps: int = 0

    def __add__(self, other: Acceptance) -> Acceptance:
        return Acceptance(
            self.drafted + other.drafted,
            self.accepted + other.accepted,
            self.emitted + other.emitted,
            self.steps + other.steps,
        )

    @property
    def rate(self) -> float:
        """Accepted over drafted tokens; 0 where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mat(self) -> float:
        """Emitted tokens a verify step."""
        return self.emitted / self.steps if self.steps else 0.0


def replay(agrees: Sequence[bool], num_draft_tokens: int) -> Acceptance:
    """What chains of `num_draft_tokens` (fewer at the end, as the budget asks) reach on one answer.

    `agrees[i]`: given the answer's own prefix, the draft's first choice is token i of the answer.
    """
    total, place = Acceptance(), 0
    while place < len(agrees):
        drafted = min(num_draft_tokens, len(agrees) - place - 1)
        run = agrees[place : place + drafted]
        accepted = next((i for i, agreed in enumerate(run) if not agreed), drafted)
        total += Acceptance(drafted, accepted, accepted + 1, 1)
        place += accepted + 1
    return total


def agreement(draft: Decoder, example: Example) -> list[bool]:
    """For each token of the answer, whether the draft would have drafted it."""
    prompt, answer = example.prompt.tolist(), example.answer.tolist()
    chosen = first_choices(draft, draft.new_cache(len(prompt) + len(answer)), prompt, answer).tolist()
    return [own == token for own, token in zip(chosen, answer, strict=True)]


def held_out_acceptance(draft: Decoder, examples: Iterable[Example], num_draft_tokens: int) -> dict[str, Acceptance]:
    """Acceptance on greedy answers by source, and on `all`."""
    found: dict[str, Acceptance] = {"all": Acceptance()}
    for example in examples:
        one = replay(agreement(draft, example), num_draft_tokens)
        for name in ("all", example.source):
            found[name] = found.get(name, Acceptance()) + one
    return found
