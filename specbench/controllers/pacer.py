"""PACER-style draft lengths: a gate judges every block, and drafting goes on while it believes in its tokens.

Of the published method only the idea is known here (docs/methods/pacer.md); rule and schedule are ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from specbench.controllers.base import ControllerBase, chances_note
from specbench.controllers.block_rules import BlockRule, CostRule
from specbench.controllers.gate import Gate, GateShape
from specbench.controllers.quick_gate import QuickGate, beside_a_draft
from specbench.controllers.step_gate import StepGate
from specbench.decoding.protocol import Block, Request
from specbench.models.artefact import Artefact, Artefacts
from specbench.types import ConfigError, Verdict

# What a gate's card may leave open; ours.
DEFAULTS = {"block_size": 3, "threshold": 0.7, "threshold_growth": 1.05, "num_draft_tokens": 16}


@dataclass(kw_only=True)
class PacerStop(ControllerBase):
    """Asked after every block; at least `min_draft_tokens` are drafted. Everything drafted is submitted."""

    gate: StepGate | QuickGate
    rule: BlockRule
    cost: CostRule | None = None
    min_draft_tokens: int = 1
    conditional: bool = False  # what the gate's chances are: given all before, or that a token is accepted at all
    _request: Request | None = field(init=False, default=None)
    _survival: float = field(init=False, default=1.0)
    _blocks: int = field(init=False, default=0)
    _chances: list[float] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        shape = self.gate.gate.shape
        scalars = {"prob", "entropy", "margin"} if shape.scalars else set()
        self.signals = frozenset({"hidden", *scalars, *(["past"] if shape.scope == "context" else [])})

    @classmethod
    def build(cls, config: Any, artefacts: Artefacts) -> PacerStop:
        """From the stored gate of this pair; raises ConfigError where there is none of this shape."""
        found = artefacts.choose("pacer", config.artefact, **gate_key(config))
        block_size = int(_from_card(found, "block_size") if config.block_size == "auto" else config.block_size)
        threshold, growth = (_chosen(config, found, block_size, name) for name in ("threshold", "threshold_growth"))
        cap = min(config.num_draft_tokens, int(_from_card(found, "num_draft_tokens")))
        gate = stored_gate(found, artefacts.drafting)
        if gate.shape.mask == "block_causal" and block_size != gate.shape.mask_block:
            raise ConfigError(
                f"method.controller.block_size={block_size}: this gate's mask is made for blocks of "
                f"{gate.shape.mask_block}; legal: {gate.shape.mask_block}"
            )
        costs = found.values.get("costs")
        if config.rule == "cost" and costs is None:
            raise ConfigError("method.controller.rule=cost: the gate's card holds no costs; legal: threshold")
        return cls(
            num_draft_tokens=cap,
            block_size=block_size,
            gate=beside_a_draft(gate, cap),
            rule=BlockRule(threshold, growth, config.threshold_max, config.agg),
            cost=CostRule(**costs) if costs and config.rule == "cost" else None,
            min_draft_tokens=min(cap, config.min_draft_tokens or block_size),
            conditional=config.label != "survive",
        )

    def begin(self, request: Request) -> None:
        self._request = request
        self.gate.begin(len(request.committed) + request.max_new_tokens)

    def start_step(self, budget: int) -> int:
        assert self._request is not None, "begin comes first"
        self._blocks, self._survival, self.score, self._chances = 0, 1.0, None, []
        self.gate.restart(self._request.committed)
        return super().start_step(budget)

    def more(self, block: Block) -> bool:
        self._blocks += 1
        chances = self.gate.chances(block)
        self._chances += chances
        wanted = self._judged(chances)
        return wanted or block.first + len(block.tokens) < self.min_draft_tokens

    def _judged(self, chances: Sequence[float]) -> bool:
        before = self._survival
        self._survival = before * math.prod(chances)
        if self.cost is None:
            self.score = self.rule.score(chances, before)
            return self.score >= self.rule.limit(self._blocks)
        self.score = self.cost.gain(chances, self._survival, self.block_size)
        return self.score > 1.0

    def notes(self) -> Mapping[str, Any]:
        return chances_note(self._chances, conditional=self.conditional)

    def end_step(self, drafted: int, verdict: Verdict) -> None:
        if self.cost is not None:
            self.cost.learn(len(verdict.tokens), drafted, self._blocks)

    def reset(self) -> None:
        if self.cost is not None:
            self.cost.reset()


def gate_key(config: Any) -> dict[str, str]:
    """What a stored gate must have been made with, besides pair and setting."""
    return {
        "feature": config.feature,
        **({} if config.scope == "step" else {"scope": config.scope}),
        "scalars": str(config.scalars).lower(),
        "mask": config.mask,
        "num_layers": str(config.num_layers),
        "step_pos": str(config.step_pos).lower(),
        "label": config.label,
        **({} if config.width_divisor == 1 else {"width_divisor": str(config.width_divisor)}),
    }


def stored_gate(found: Artefact, drafting: Any) -> Gate:
    """The gate of an artefact, on the embedding of the model that drafts."""
    shape = GateShape(**{part.name: found.values.get(part.name, part.default) for part in fields(GateShape)})
    return Gate(drafting.spec, drafting.embedding, shape).load(dict(found.tensors))


def _chosen(config: Any, found: Artefact, block_size: int, name: str) -> float:
    """The configured number; for `auto` what replay found best at this block size, else what the card says."""
    given = getattr(config, name)
    if given != "auto":
        return float(given)
    replayed = found.card.get("replay", {}).get(str(block_size), {})
    return float(replayed.get(name, _from_card(found, name)))


def _from_card(found: Artefact, name: str) -> float:
    return float(found.values.get(name, DEFAULTS[name]))
