"""From what a generator gave to the rows that are stored: one place that knows both sides."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specbench.analysis.exactness import repetition_rate
from specbench.results.schema import choice_row, step_row
from specbench.types import Generation, Sample

_PHASES = ("draft_s", "verify_s", "adapt_s", "host_s")


@dataclass(frozen=True)
class Turn:
    """What both arms of one turn share. `tokens` is the prompt; `number` counts turns from 0."""

    sample: Sample
    number: int
    repeat: int
    tokens: Sequence[int]
    sha256: str
    truncated: bool
    seed: int


@dataclass
class Answer:
    """One arm's answer to one turn: a generation, or why there is none."""

    turn: Turn
    arm: str
    attempt: int = 0
    used: bool = True
    ran_first: bool = False
    timed: bool = False
    generation: Generation | None = None
    text: str | None = None
    finish_reason: str = "error"
    error: str | None = None
    peak_memory_bytes: int | None = None
    load_before: float | None = None
    load_after: float | None = None
    started_at: float = field(default_factory=time.time)
    comparison: Mapping[str, Any] = field(default_factory=dict)  # exact_match, divergence_*, teacher_agreement
    scores: Mapping[str, float] | None = None

    @property
    def key(self) -> dict[str, Any]:
        return {
            "sample_id": self.turn.sample.id,
            "turn": self.turn.number,
            "arm": self.arm,
            "attempt": self.attempt,
            "repeat": self.turn.repeat,
        }


def sample_row(answer: Answer) -> dict[str, Any]:
    """The samples row of one answer; without a generation it carries no measured number."""
    turn = answer.turn
    row = {
        **answer.key,
        "used": answer.used,
        "category": turn.sample.category,
        "ran_first": answer.ran_first,
        "seed": turn.seed,
        "prompt_sha256": turn.sha256,
        "prompt_tokens": len(turn.tokens),
        "prompt_truncated": turn.truncated,
        "finish_reason": answer.finish_reason,
        "error": answer.error,
        "load_before": answer.load_before,
        "load_after": answer.load_after,
        "timed": answer.timed,
        "started_at": answer.started_at,
    }
    if answer.generation is None:
        return row
    scores = None if not answer.scores else json.dumps(dict(answer.scores))
    measured = {"peak_memory_bytes": answer.peak_memory_bytes, "scores": scores, "text": answer.text}
    return {**row, **measured, **_numbers(answer.generation), **answer.comparison}


def step_rows(answer: Answer) -> list[dict[str, Any]]:
    """The steps rows of one answer; none for a generator without steps."""
    steps = answer.generation.steps if answer.generation else None
    return [step_row(answer.key, step) for step in steps or ()]


def choice_rows(answer: Answer) -> list[dict[str, Any]]:
    """The choices rows of one answer."""
    choices = answer.generation.choices if answer.generation else ()
    return [choice_row(answer.key, choice) for choice in choices]


def _numbers(generation: Generation) -> dict[str, Any]:
    numbers: dict[str, Any] = {
        "num_tokens": len(generation.tokens),
        "tokens": list(generation.tokens),
        "prefill_s": generation.prefill_s,
        "decode_s": generation.decode_s,
        "ttft_s": generation.ttft_s,
        "repetition_rate": repetition_rate(generation.tokens),
    }
    steps = generation.steps
    if steps is None:
        return numbers
    has_spine = all(step.num_draft_tokens is not None for step in steps)
    return {
        **numbers,
        **{phase: sum(getattr(step, phase) for step in steps) for phase in _PHASES},
        "num_steps": len(steps),
        "num_draft_tokens": sum(step.num_draft_tokens or 0 for step in steps) if has_spine else None,
        "num_tree_tokens": sum(step.num_tree_tokens for step in steps),
        "num_accepted": sum(step.num_accepted for step in steps),
        "num_accepted_spine": sum(step.num_accepted_spine for step in steps) if has_spine else None,
    }


def sample_seed(seed: int, sample_id: str, turn: int, repeat: int) -> int:
    """The seed of one turn's generator: any sample can be replayed alone."""
    digest = hashlib.sha256(f"{seed}|{sample_id}|{turn}|{repeat}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
