"""Stop drafting after a token that the draft itself thinks unlikely."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from specbench.controllers.base import ScoreStop
from specbench.decoding.protocol import Block
from specbench.types import Verdict

_SIGNAL = {"token": "prob", "top": "topk"}


@dataclass
class ConfidenceStop(ScoreStop):
    """Drafting ends after the first token with draft probability below `threshold`; that token is kept and verified.

    `probability`: of the drafted `token`, or of the `top` one (the same when greedy). Source: the confidence stop of
    the transformers library's assisted generation (threshold 0.4, 20 tokens), and of KnapSpec, CLaSp, SWIFT and
    ConfLayers with their own numbers; Kangaroo looks at the top one.
    """

    num_draft_tokens: int = 20
    threshold: float = 0.4
    probability: str = "token"

    def __post_init__(self) -> None:
        self.signals = frozenset({_SIGNAL[self.probability]})

    @property
    def limit(self) -> float:
        return self.threshold

    def judge(self, block: Block) -> float:
        return min(self._probs(block))

    def _probs(self, block: Block) -> list[float]:
        if self.probability == "token":
            assert block.prob is not None
            return [float(prob) for prob in block.prob.tolist()]
        assert block.topk is not None
        return [float(prob) for prob in block.topk[:, 0].tolist()]


@dataclass
class DynamicConfidence(ConfidenceStop):
    """A confidence stop whose threshold is fitted anew after every verdict, starting at `threshold`.

    Every drafted token up to the first rejected one is an observation: its probability, and whether it was accepted.
    Once there are more than `min_history` of them and both kinds, the threshold becomes the one with the least
    (false positive rate + `miss_cost` * false negative rate). The last `max_history` observations count (None = all).
    They live as long as `method.scope` says. Source: the transformers library (miss_cost 3, more than 5, all).
    """

    miss_cost: float = 3.0
    min_history: int = 5
    max_history: int | None = None
    _fitted: float | None = field(init=False, default=None)
    _drafted: list[float] = field(init=False, default_factory=list)  # probabilities of this step's tokens
    _history: list[tuple[float, bool]] = field(init=False, default_factory=list)

    @property
    def limit(self) -> float:
        return self.threshold if self._fitted is None else self._fitted

    def start_step(self, budget: int) -> int:
        self._drafted = []
        return super().start_step(budget)

    def judge(self, block: Block) -> float:
        self._drafted += self._probs(block)
        return super().judge(block)

    def ended(self, block: Block) -> None:
        self._drafted += self._probs(block)

    def end_step(self, drafted: int, verdict: Verdict) -> None:
        accepted = min(verdict.num_accepted_spine, len(self._drafted))
        judged = self._drafted[: accepted + 1]
        self._history += [(prob, place < accepted) for place, prob in enumerate(judged)]
        if self.max_history is not None:
            self._history = self._history[-self.max_history :]
        matches = {match for _, match in self._history}
        if len(self._history) > self.min_history and len(matches) == 2:
            self._fitted = cheapest_threshold(self._history, self.miss_cost)

    def reset(self) -> None:
        self._fitted, self._history = None, []


def cheapest_threshold(history: list[tuple[float, bool]], miss_cost: float) -> float:
    """The threshold t for which false positive rate + `miss_cost` * false negative rate of "probability >= t" is least.

    `history`: probabilities and whether they were matches, both kinds among them. Of equals the largest; it is never
    above 1, where nothing at all is let through.
    """
    probs, matches = (np.array(column) for column in zip(*sorted(history, reverse=True), strict=True))
    last = np.flatnonzero(np.append(np.diff(probs) != 0, True))  # equal probabilities pass together
    passed, right = last + 1, np.cumsum(matches)[last]
    false_positives = (passed - right) / np.sum(~matches)
    costs = false_positives + miss_cost * (1.0 - right / np.sum(matches))
    best = int(np.argmin(costs))
    return float(probs[last[best]]) if costs[best] < miss_cost else 1.0
