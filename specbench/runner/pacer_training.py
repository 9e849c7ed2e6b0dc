"""A gate for what a session runs: fit it to collected steps, choose block size and thresholds by replay."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from specbench.analysis.replay import BlockThreshold, Costs, Outcome, Trace, replay, tuned_length
from specbench.config import RunConfig
from specbench.config.controllers import PacerConfig
from specbench.controllers.block_rules import BlockRule
from specbench.controllers.fixed import FixedLength
from specbench.controllers.gate import Gate, GateShape
from specbench.controllers.pacer import DEFAULTS, PacerStop, gate_key, stored_gate
from specbench.controllers.quick_gate import beside_a_draft
from specbench.hardware.profile import seconds
from specbench.methods.build import artefact_key
from specbench.models.artefact import Artefact
from specbench.runner.controller_training import THRESHOLDS, measured_costs, timed_tokens, traces
from specbench.runner.session import Session
from specbench.training.gate import GATE_OPTIONS, draft_chances, fit_gate
from specbench.training.heads import FitOptions, fit_scalars, held_out_prompts
from specbench.training.rollouts import Rollouts
from specbench.types import ConfigError

log = logging.getLogger(__name__)

BLOCK_SIZES = (1, 2, 3, 4, 5, 6)
GROWTHS = (1.0, 1.05, 1.1)
_TIMED_BLOCK = 2  # tokens of a block when the time of asking is measured

Policies = dict[tuple[int, float, float], BlockThreshold]  # block size, threshold, growth


def train_pacer(config: RunConfig, session: Session, data: Rollouts, options: FitOptions = GATE_OPTIONS) -> Artefact:
    """The gate that the run's controller names, fitted and tuned, beside the control that sees scalars only."""
    chosen = pacer_of(config)
    options = dataclasses.replace(options, label=chosen.label)
    parts = session.parts
    drafting = parts.require_draft() if config.method.needs_draft else parts.target.decoder
    key = {**artefact_key(config.method, parts), **gate_key(chosen)}
    fitted = fit_gate(data, key, drafting, _shape(chosen), options)
    control = fit_scalars(data, key, options=dataclasses.replace(FitOptions(epochs=20), label=chosen.label))
    fitted = dataclasses.replace(fitted, card={**fitted.card, "scalars_only": control.card["scores"]})
    gate = stored_gate(fitted, drafting)
    costs = gate_costs(config, session, gate, tokens=timed_tokens(data))
    return tuned(fitted, gate, data, costs=costs, config=chosen, held=held_out_prompts(data.prompt, options))


def gate_costs(config: RunConfig, session: Session, gate: Gate, *, tokens: int) -> Costs:
    """Of drafts of `tokens` tokens, without being asked and with the gate asked after every block.

    Nobody is asked after the last block, which the cap ends; of a draft of one token no check is known (0).
    """
    size = min(_TIMED_BLOCK, max(1, tokens - 1))
    live, never = beside_a_draft(gate, tokens), BlockRule(0.0, 1.0)
    asked = PacerStop(num_draft_tokens=tokens, block_size=size, gate=live, rule=never)
    alone, beside = measured_costs(config, session, [FixedLength(tokens), asked])
    checks = (tokens - 1) // size
    extra = max(0.0, beside.draft - alone.draft) * tokens
    return dataclasses.replace(alone, check=extra / checks if checks else 0.0)


def pacer_of(config: RunConfig) -> PacerConfig:
    """The run's controller; ConfigError where it is another."""
    chosen = config.method.controller
    if not isinstance(chosen, PacerConfig):
        raise ConfigError(f"method/controller={chosen.name}: legal: pacer (for example method=pacer)")
    return chosen


def _shape(config: PacerConfig) -> GateShape:
    block = DEFAULTS["block_size"] if config.block_size == "auto" else config.block_size
    names = ("feature", "scope", "scalars", "mask", "num_layers", "step_pos", "width_divisor")
    return GateShape(**{name: getattr(config, name) for name in names}, mask_block=int(block))


def tuned(fitted: Artefact, gate: Gate, data: Rollouts, *, costs: Costs, config: PacerConfig, held: Tensor) -> Artefact:
    """The artefact with the block size, threshold and growth of most tokens per predicted second on `held` prompts."""
    cap = min(config.num_draft_tokens, int(data.index.max()))
    known = traces(data, lambda rows: draft_chances(gate, data, rows), only=held)
    outcomes = {
        names: replay(known, policy, costs, block_size=policy.block_size)
        for names, policy in policies(config, gate.shape, cap).items()
    }
    best = max(outcomes, key=lambda names: outcomes[names].tokens_per_second or 0.0)
    log.info("block size %d, threshold %.2f, growth %.2f: of %d replayed", *best, len(outcomes))
    values = {
        **fitted.values,
        **dict(zip(("block_size", "threshold", "threshold_growth"), best, strict=True)),
        "num_draft_tokens": cap,
        "costs": _in_target_passes(outcomes[best], costs),
    }
    return dataclasses.replace(fitted, values=values, card={**fitted.card, **_replayed(outcomes, known, costs, cap)})


def policies(config: PacerConfig, shape: GateShape, cap: int) -> Policies:
    """What is tried; a block-causal gate has one block size."""
    sizes = [size for size in BLOCK_SIZES if size <= cap] if shape.mask == "causal" else [shape.mask_block]
    return {
        (size, threshold, growth): BlockThreshold(
            cap,
            block_size=size,
            rule=BlockRule(threshold, growth, config.threshold_max, config.agg),
            min_draft_tokens=min(cap, config.min_draft_tokens or size),
            lag=shape.lag,
        )
        for size, threshold, growth in itertools.product(sizes, THRESHOLDS, GROWTHS)
    }


def _in_target_passes(outcome: Outcome, costs: Costs) -> dict[str, float]:
    one = seconds(costs.verify, 1)
    assert outcome.seconds is not None
    rate = outcome.emitted / (outcome.seconds / one)
    return {"draft": costs.draft / one, "check": costs.check / one, "rate": rate}


def _replayed(
    outcomes: dict[tuple[int, float, float], Outcome], known: Sequence[Trace], costs: Costs, cap: int
) -> dict[str, Any]:
    """The best of every block size, and what a fixed length reaches on the same prompts."""
    length, fixed = tuned_length(known, costs, range(1, cap + 1))

    best: dict[str, Any] = {}
    for (size, threshold, growth), outcome in outcomes.items():
        entry = {"threshold": threshold, "threshold_growth": growth, **outcome.numbers()}
        if entry["tokens_per_second"] > best.get(str(size), {"tokens_per_second": 0.0})["tokens_per_second"]:
            best[str(size)] = entry
    timed = {"draft_s": costs.draft, "check_s": costs.check}
    return {
        "replay": best,
        "fixed_on_the_same": {"num_draft_tokens": length, **fixed[length].numbers()},
        "measured": timed,
    }
