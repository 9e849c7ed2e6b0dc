"""What the loop, drafters and controllers agree on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from specbench.decoding.sampling import Draws
from specbench.decoding.target import Target
from specbench.hardware.timer import PhaseTimer
from specbench.types import ChoiceRecord, Draft, Needs, Sampling, Verdict, VerifyResult


@dataclass(frozen=True)
class Request:
    """One prompt to answer. `committed` is the live list: prompt, then every emitted token."""

    target: Target
    committed: list[int]
    sampling: Sampling
    draws: Draws
    stop_ids: Collection[int]
    max_new_tokens: int
    timer: PhaseTimer
    reference_ids: Sequence[int] | None = None  # AR's answer; only for parts that declare that they are oracles


SIGNALS = ("prob", "entropy", "raw_entropy", "margin", "topk", "hidden")


@dataclass(frozen=True)
class Block:
    """Tokens drafted since the controller was last asked; signals are there when the controller names them."""

    first: int  # position of the block's first token in the draft, 0-based
    tokens: Sequence[int]  # [b]
    prob: Tensor | None = None  # [b] draft probability of each token
    entropy: Tensor | None = None  # [b] of the draft distribution, nats
    raw_entropy: Tensor | None = None  # [b] the same at temperature 1, without top-k and top-p
    margin: Tensor | None = None  # [b] top-1 minus top-2 logit
    topk: Tensor | None = None  # [b, 10] largest draft probabilities
    hidden: Tensor | None = None  # [b, d] state that PREDICTED each token, after the draft's final norm
    past: Tensor | None = None  # [C - 1, d] the same state of each committed token but the first (signal `past`)


class Controller(Protocol):
    """Decides when drafting stops, from drafted tokens only."""

    block_size: int
    signals: frozenset[str]  # subset of SIGNALS and `past`, which only drafters with a model of their own can give
    score: float | None  # the rule's value for the last block it judged, to be recorded

    def begin(self, request: Request) -> None:
        """A new prompt starts."""

    def start_step(self, budget: int) -> int:
        """The largest number of tokens to draft in this step; 0 asks for an AR step."""

    def more(self, block: Block) -> bool:
        """Whether another block should follow."""

    def ended(self, block: Block) -> None:
        """The step's last block, where nobody is asked: the cap, the budget or a stop id ended the draft."""

    def notes(self) -> Mapping[str, Any]:
        """What the record of this step should say of the rule, beside its scores; {} for most."""

    def end_step(self, drafted: int, verdict: Verdict) -> None:
        """Learn from the target's verdict on the `drafted` tokens."""

    def reset(self) -> None:
        """Forget everything learnt; `method.scope` says when that is asked for."""


class Drafter(Protocol):
    """Proposes tokens; everything else is the loop's."""

    def begin(self, request: Request) -> None:
        """A new prompt starts; time spent here counts as prefill."""

    def needs(self) -> Needs:
        """What the next verify pass must show."""

    def propose(self, budget: int) -> Draft:
        """At most `budget` tokens in a row; an empty draft is an AR step."""

    def observe(self, verdict: Verdict, result: VerifyResult) -> None:
        """Learn from a step and roll back own state; `verdict` is cut at stop and budget already."""

    def choices(self) -> Sequence[ChoiceRecord]:
        """Structural choices made since `begin`."""

    def reset(self) -> None:
        """Forget everything learnt; `method.scope` says when that is asked for."""


@dataclass
class DrafterBase:
    """A drafter that needs nothing, learns nothing and chooses nothing; methods override what they do."""

    request: Request = field(init=False, repr=False)

    def begin(self, request: Request) -> None:
        self.request = request

    def needs(self) -> Needs:
        return Needs()

    def observe(self, verdict: Verdict, result: VerifyResult) -> None:
        return None

    def choices(self) -> Sequence[ChoiceRecord]:
        return ()

    def reset(self) -> None:
        return None
