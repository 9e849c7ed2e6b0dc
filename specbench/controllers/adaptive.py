"""A stop threshold that follows the share of drafted tokens that is accepted, and the rule it was made for."""

from __future__ import annotations

from dataclasses import dataclass, field

from specbench.controllers.base import ScoreStop
from specbench.decoding.protocol import Block, Request
from specbench.types import Verdict


@dataclass
class AdaptiveThreshold:
    """Rises by `step` while the running acceptance is below `target`, falls by it otherwise, both smoothed.

    Running acceptance (0 at first) keeps `acceptance_memory` of itself at every verdict, the threshold keeps
    `threshold_memory`. It never falls after a draft that the cap ended. Source: the code of Draft & Verify
    (dilab-zju/self-speculative-decoding); AdaEDL is reported to do the same.
    """

    value: float
    target: float
    step: float
    acceptance_memory: float
    threshold_memory: float
    acceptance: float = field(init=False, default=0.0)

    def learn(self, drafted: int, accepted: int, *, at_cap: bool) -> None:
        """Move after a verdict on `drafted` > 0 tokens."""
        share = accepted / drafted
        self.acceptance = self.acceptance_memory * self.acceptance + (1.0 - self.acceptance_memory) * share
        wanted = self.value + self.step if self.acceptance < self.target else self.value - self.step
        if at_cap:
            wanted = max(wanted, self.value)
        self.value = self.threshold_memory * self.value + (1.0 - self.threshold_memory) * wanted


@dataclass
class AdaptiveStop(ScoreStop):
    """A rule with a moving threshold, which lives as long as `method.scope` says; `adaptive` False holds it still."""

    threshold: float = 0.5
    adaptive: bool = True
    target_acceptance: float = 0.9
    threshold_step: float = 0.01
    acceptance_memory: float = 0.5
    threshold_memory: float = 0.9
    _moving: AdaptiveThreshold | None = field(init=False, default=None)

    @property
    def limit(self) -> float:
        return self._moving.value if self.adaptive and self._moving is not None else self.threshold

    def start_threshold(self, request: Request) -> float:
        """The threshold of the first step."""
        return self.threshold

    def begin(self, request: Request) -> None:
        if self._moving is None:
            self._moving = AdaptiveThreshold(
                self.start_threshold(request),
                self.target_acceptance,
                self.threshold_step,
                acceptance_memory=self.acceptance_memory,
                threshold_memory=self.threshold_memory,
            )

    def end_step(self, drafted: int, verdict: Verdict) -> None:
        if drafted and self._moving is not None:
            at_cap = drafted >= self.num_draft_tokens
            self._moving.learn(drafted, verdict.num_accepted_spine, at_cap=at_cap)

    def reset(self) -> None:
        self._moving = None


@dataclass
class DraftVerify(AdaptiveStop):
    """Drafting ends after the first token with draft probability below an adaptive threshold.

    It starts at `threshold` when greedy and at `sampling_threshold` otherwise. Source: the code of Draft & Verify.
    """

    num_draft_tokens: int = 12
    threshold: float = 0.8
    sampling_threshold: float = 0.6
    signals: frozenset[str] = field(init=False, default=frozenset({"prob"}))

    def start_threshold(self, request: Request) -> float:
        return self.threshold if request.sampling.greedy else self.sampling_threshold

    def judge(self, block: Block) -> float:
        assert block.prob is not None
        return float(block.prob.min())
