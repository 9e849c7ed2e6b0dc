"""The shared self-drafter: the target itself with some sublayers left out, on its own weights and cache.

Draft rows go behind the committed rows of the target's cache and are overwritten by the verify pass, so rolling back
costs nothing and no row is copied. A skipped attention layer leaves its rows unwritten: the same draft never reads
them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from specbench.decoding.loop import empty_draft
from specbench.decoding.protocol import Controller, DrafterBase, Request
from specbench.methods.chain import Branching, ChainDrafter
from specbench.types import ChoiceRecord, ConfigError, Draft, Verdict, VerifyResult

CHOICE_NUMBERS = ("predicted_acceptance", "measured_acceptance", "predicted_tokens_per_second", "search_s")


@dataclass
class LayerSkipDrafter(DrafterBase):
    """Drafts a chain (or a spine with siblings) with the target minus `skip` (sublayers 0..2L-1).

    Methods decide `skip` in `observe`; None = do not draft (an AR step). Every change is a ChoiceRecord.
    """

    controller: Controller
    skip: frozenset[int] | None = None
    branching: Branching | None = None
    searches: bool = False
    _rows: int = field(init=False, default=0)  # draft rows written behind the committed ones
    _drafted: int = field(init=False, default=0)
    _step: int = field(init=False, default=0)
    _choices: list[ChoiceRecord] = field(init=False, default_factory=list)

    def begin(self, request: Request) -> None:
        super().begin(request)
        self.controller.begin(request)
        self._choices = []
        self._step = 0
        if self.skip is not None and not self.searches:
            self.install(self.skip, reason="given")

    def propose(self, budget: int) -> Draft:
        return self.drafted(budget)

    def drafted(self, budget: int, *, planned: int | None = None) -> Draft:
        """A chain (or tree) of the skipping model, at most `planned` tokens long; empty without a set to skip."""
        self._rows = self._drafted = 0
        if self.skip is None:
            return empty_draft("no_skip_set")
        chain = ChainDrafter(self.controller, self.request.target.decoder.spec.vocab_size, self.request, self.branching)
        draft = chain.draft(self._forward, self.request.committed[-1:], budget=budget, planned=planned)
        self._drafted = draft.spine or 0
        return draft

    def observe(self, verdict: Verdict, result: VerifyResult) -> None:
        if self._drafted:
            self.controller.end_step(self._drafted, verdict)
        self._step += 1

    def choices(self) -> Sequence[ChoiceRecord]:
        return tuple(self._choices)

    def reset(self) -> None:
        self.controller.reset()

    def best(self) -> frozenset[int] | None:
        """The set to keep when no more steps follow."""
        return self.skip

    def install(self, skip: Iterable[int] | None, **why: Any) -> None:
        """Draft without these sublayers from the next step on, and record the change with its reasons.

        A number that a method does not have is null: `predicted_acceptance`, `predicted_tokens_per_second` and
        `search_s` belong to this set, `measured_acceptance` to the one before.
        """
        self.skip = None if skip is None else frozenset(skip)
        kept = sorted(self.skip) if self.skip is not None else None
        values = {"sublayers": kept, **counts(kept), **dict.fromkeys(CHOICE_NUMBERS), **why}
        self._choices.append(ChoiceRecord(self._step, len(self.request.committed), "skip_set", values))

    def _forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        target = self.request.target
        start = target.cache.length + self._rows
        assert self.skip is not None
        out = target.decoder.forward(ids, target.cache, start=start, skip=self.skip, logits="last")
        self._rows += ids.shape[1]
        assert out.logits is not None
        assert out.normed is not None
        return out.logits[0, -1], out.normed[0, -1]


def counts(skip: Collection[int] | None) -> dict[str, int | None]:
    """How many attention and MLP sublayers a set leaves out."""
    if skip is None:
        return {"num_attention_skipped": None, "num_mlp_skipped": None}
    mlp = sum(index % 2 for index in skip)
    return {"num_attention_skipped": len(skip) - mlp, "num_mlp_skipped": mlp}


def layers_to_sublayers(layers: Iterable[int]) -> frozenset[int]:
    """Both sublayers of whole layers."""
    return frozenset(sublayer for layer in layers for sublayer in (2 * layer, 2 * layer + 1))


def uniform_layers(num_layers: int) -> frozenset[int]:
    """Every odd interior layer 1, 3, 5, ..., <= L - 2, as sublayers (SWIFT's and ConfLayers' initial set)."""
    return layers_to_sublayers(range(1, num_layers - 1, 2))


def checked_set(skip: Iterable[int], num_sublayers: int) -> frozenset[int]:
    """A stored or typed set; ConfigError when a sublayer is not one of the model's."""
    found = frozenset(int(index) for index in skip)
    wrong = sorted(index for index in found if not 0 <= index < num_sublayers)
    if wrong:
        raise ConfigError(f"method.skip_set: sublayers {wrong} are not in 0..{num_sublayers - 1} of this model")
    return found
