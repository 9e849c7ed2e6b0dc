"""What another draft length would have given, from the steps of one run: exact for greedy chains, no model needed.

A greedy draft depends on the tokens before it and on nothing else. So one run with long drafts shows, for every token
of an answer, whether the draft would have predicted it, and from that every policy's steps follow: a step that drafts k
tokens from token i on keeps those before the first wrong one, and emits one more. Costs turn steps into seconds. Two
things are not seen: a stop id that a draft would have ended with behind a wrong token, so that it counts with its full
length, and when sampling, where acceptance is drawn anew in every step, the recorded draws are taken as if they were
the answer's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from specbench.analysis.rows import ratio
from specbench.controllers.block_rules import BlockRule
from specbench.hardware.profile import VerifyCurve, seconds
from specbench.types import DataError

LENGTHS = (*range(1, 13), 16, 20)  # the fixed lengths among which one is tuned

Start = int  # index of the token, in the answer, that a draft begins with


@dataclass(frozen=True)
class Trace:
    """One answer of N tokens: `right` [N] says whether the draft predicts each, given all before it.

    `unknown` counts tokens of which the run does not tell, since it verified a shorter draft and accepted all of it;
    they count as right. `budget`: tokens the answer might have had. `scores[i]`: what the run's rule thought of the
    tokens that a draft beginning with token i has, as far as it was asked. `ends` [N], where it is known: the draft
    predicts a stop id there, with which its chain ends.
    """

    right: NDArray[np.bool_]
    unknown: int = 0
    budget: int = 0
    scores: Mapping[Start, Sequence[float]] | None = None
    ends: NDArray[np.bool_] | None = None

    def run_length(self, start: Start) -> int:
        """Tokens accepted of a draft without end that begins with token `start`."""
        wrong = np.flatnonzero(~self.right[start:])
        return int(wrong[0]) if len(wrong) else len(self.right) - start

    def room(self, start: Start) -> int:
        """The longest draft that the loop allows there."""
        left = max(0, max(self.budget, len(self.right)) - start - 1)
        run = self.run_length(start)
        if run == len(self.right) - start:  # nothing is drafted behind the answer's end
            left = min(left, run)
        if self.ends is None:
            return left
        stops = np.flatnonzero(self.ends[start : start + run + 1])  # behind a wrong token its chain is not known
        return min(left, int(stops[0]) + 1) if len(stops) else left


class Policy(Protocol):
    """A draft length for every step; may learn from verdicts."""

    def length(self, trace: Trace, start: Start) -> int:
        """Tokens to draft from token `start` of the answer on, before the budget cuts them."""

    def learn(self, drafted: int, accepted: int) -> None:
        """A step was verified."""


@dataclass(frozen=True)
class Fixed:
    """Always as many."""

    num_draft_tokens: int

    def length(self, trace: Trace, start: Start) -> int:
        return self.num_draft_tokens

    def learn(self, drafted: int, accepted: int) -> None:
        return None


@dataclass(frozen=True)
class TokenOracle(Fixed):
    """A bound: exactly the tokens that will be accepted."""

    num_draft_tokens: int = 1_000_000

    def length(self, trace: Trace, start: Start) -> int:
        return min(trace.run_length(start), self.num_draft_tokens)


@dataclass(frozen=True)
class BlockOracle(Fixed):
    """A bound: stops after the first block that holds a wrong token."""

    block_size: int = 1

    def length(self, trace: Trace, start: Start) -> int:
        blocks = trace.run_length(start) // self.block_size + 1
        return min(blocks * self.block_size, self.num_draft_tokens)


@dataclass(frozen=True)
class Threshold(Fixed):
    """Stops after the first token with a recorded score below `threshold`; the run must have been scored by token."""

    threshold: float = 0.5

    def length(self, trace: Trace, start: Start) -> int:
        known = (trace.scores or {}).get(start, ())
        below = next((place for place, score in enumerate(known) if score < self.threshold), None)
        return self.num_draft_tokens if below is None else min(below + 1, self.num_draft_tokens)


@dataclass(frozen=True)
class BlockThreshold(Fixed):
    """A gate's block rule on recorded chances: `scores` are those of the tokens, one by one.

    `lag`: tokens at a block's end that are judged with the next block.
    """

    block_size: int = 3
    rule: BlockRule = field(default_factory=BlockRule)
    min_draft_tokens: int = 1
    lag: int = 0

    def length(self, trace: Trace, start: Start) -> int:
        known, survival = (trace.scores or {}).get(start, ()), 1.0
        for number, first in enumerate(range(0, len(known), self.block_size), start=1):
            end = first + self.block_size
            if end - self.lag > len(known):  # a stop id or the run's own cap ended this draft: nobody would be asked
                break
            chances = known[max(0, first - self.lag) : end - self.lag]
            wanted = self.rule.score(chances, survival) >= self.rule.limit(number)
            if not wanted and end >= self.min_draft_tokens:
                return min(end, self.num_draft_tokens)
            survival *= math.prod(chances)
        return self.num_draft_tokens


@dataclass(frozen=True)
class Costs:
    """Seconds: `draft` of one drafted token, `verify` of a target pass over so many rows, `check` of asking a rule."""

    draft: float
    verify: VerifyCurve
    check: float = 0.0

    def step(self, drafted: int, checks: int = 0) -> float:
        """Seconds of one step."""
        return drafted * self.draft + seconds(self.verify, drafted + 1) + checks * self.check


@dataclass(frozen=True)
class Outcome:
    """What a policy did over all traces; `seconds` None without costs."""

    steps: int
    drafted: int
    accepted: int
    emitted: int
    seconds: float | None = None

    @property
    def mat(self) -> float | None:
        """Tokens a step."""
        return ratio(self.emitted, self.steps)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per predicted second."""
        return None if self.seconds is None else ratio(self.emitted, self.seconds)

    def numbers(self) -> dict[str, Any]:
        """Counts and rates by name, for a card."""
        return {**asdict(self), "mat": self.mat, "tokens_per_second": self.tokens_per_second}


@dataclass(frozen=True)
class Step:
    """One replayed step."""

    start: Start
    drafted: int
    accepted: int
    emitted: int


def steps_of(trace: Trace, policy: Policy) -> Iterator[Step]:
    """The steps that `policy` takes over an answer."""
    start = 0
    while start < len(trace.right):
        drafted = max(0, min(policy.length(trace, start), trace.room(start)))
        accepted = min(drafted, trace.run_length(start))
        emitted = min(accepted + 1, len(trace.right) - start)
        yield Step(start, drafted, accepted, emitted)
        policy.learn(drafted, accepted)
        start += emitted


def replay(traces: Sequence[Trace], policy: Policy, costs: Costs | None = None, *, block_size: int = 0) -> Outcome:
    """All traces under one policy; `block_size` > 0 prices one check after every block of so many tokens."""
    steps = [step for trace in traces for step in steps_of(trace, policy)]

    def checks(step: Step) -> int:
        return -(-step.drafted // block_size) if block_size else 0

    return Outcome(
        steps=len(steps),
        drafted=sum(step.drafted for step in steps),
        accepted=sum(step.accepted for step in steps),
        emitted=sum(step.emitted for step in steps),
        seconds=None if costs is None else sum(costs.step(step.drafted, checks(step)) for step in steps),
    )


def tuned_length(
    traces: Sequence[Trace], costs: Costs, grid: Sequence[int] = LENGTHS
) -> tuple[int, dict[int, Outcome]]:
    """The fixed length of `grid` with the most tokens per predicted second (of equals the shortest), and all outcomes.

    Choose it on held-out prompts: on the prompts that it is scored on it is a bound.
    """
    outcomes = {length: replay(traces, Fixed(length), costs) for length in grid}
    rates = {length: outcome.tokens_per_second or 0.0 for length, outcome in outcomes.items()}
    return max(rates, key=lambda length: rates[length]), outcomes


# ---- from stored steps


def traces_of(steps: pd.DataFrame, *, max_new_tokens: int | None = None) -> list[Trace]:
    """One trace an answer, from the step rows of one run that drafted chains.

    Lengths beyond what the run drafted are not seen: draft at least as long as the longest policy to be replayed.
    `max_new_tokens`: the run's budget a turn, where answers may have ended before it. DataError on trees.
    """
    by_answer = ["run_id", *_ANSWER] if "run_id" in steps else list(_ANSWER)
    groups = steps.sort_values("step").groupby(by_answer, sort=True)
    return [_trace(rows.to_dict("records"), max_new_tokens or 0) for _, rows in groups]


_LISTS = (list, tuple, np.ndarray)
_ANSWER = ("sample_id", "turn", "arm", "attempt", "repeat")


def _trace(steps: Sequence[Mapping[Any, Any]], budget: int) -> Trace:
    right: list[bool] = []
    unknown = 0
    scores: dict[Start, list[float]] = {}
    for step in steps:
        drafted, accepted, emitted = (int(step[name]) for name in ("num_draft_tokens", "num_accepted", "num_emitted"))
        if step["num_tree_tokens"] != drafted or emitted > accepted + 1:
            raise DataError(f"sample {step['sample_id']}: step {step['step']} drafted no chain; it cannot be replayed")
        own = scores_by_token(step)
        for place in range(accepted + 1):
            scores[len(right) + place] = own[place:]
        unknown += emitted > accepted == drafted
        right += [True] * min(accepted, emitted) + [accepted == drafted] * (emitted - accepted)
    return Trace(np.array(right, dtype=bool), unknown, budget, scores)


def scores_by_token(step: Mapping[Any, Any]) -> list[float]:
    """The rule's score of each drafted token that it judged; [] where it judged longer blocks."""
    lengths, scores = step.get("block_lengths"), step.get("block_scores")
    if not (isinstance(lengths, _LISTS) and isinstance(scores, _LISTS)) or any(int(n) != 1 for n in lengths):
        return []
    return [float(score) for score in scores]


def step_costs(steps: pd.DataFrame, curve: VerifyCurve) -> Costs:
    """Costs as a run measured them: `draft_s` a drafted token, and the run's own t(T)."""
    drafted = steps[steps["num_draft_tokens"] > 0]
    per_token = ratio(float(drafted["draft_s"].sum()), float(drafted["num_draft_tokens"].sum()))
    if per_token is None:
        raise DataError("no step drafted anything, so what a drafted token costs is not known")
    return Costs(per_token, curve)
