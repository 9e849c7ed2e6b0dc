"""Timed answers of several methods to the same prompts, and what they say about speed and drafting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specbench.analysis.stats import bca_interval, ratio_of_sums
from specbench.types import ChoiceRecord, Generator, StepRecord

from .measure import Bound, Figure
from .stage import Stage


@dataclass(frozen=True)
class Answer:
    """One timed answer; `records` and `choices` are empty for methods without steps."""

    kind: str
    prompt: str
    method: str
    seconds: float
    tokens: int
    steps: int | None
    ids: tuple[int, ...]
    records: tuple[StepRecord, ...] = ()
    choices: tuple[ChoiceRecord, ...] = ()


def ask(stage: Stage, generator: Generator, label: tuple[str, str, str], work: tuple[Sequence[int], int]) -> Answer:
    """`label` = kind, prompt, method; `work` = prompt ids and the most tokens of the answer."""
    prompt, tokens = work
    got = generator.generate(prompt, max_new_tokens=tokens, seed=0, stop_ids=stage.session.model.stop_ids)
    records, choices = got.steps or (), tuple(getattr(got, "choices", ()))
    steps = None if got.steps is None else len(got.steps)
    return Answer(*label, got.decode_s, len(got.tokens), steps, got.tokens, tuple(records), choices)


def given_by(answers: Iterable[Answer], method: str) -> dict[str, Answer]:
    """A method's answers by prompt."""
    return {answer.prompt: answer for answer in answers if answer.method == method}


def speedup(answers: Sequence[Answer], name: str, pair: tuple[str, str, Bound | None], *, noisy: bool) -> Figure:
    """`pair` = method, base, what is required; over the prompts that both answered, pooled by sums."""
    method, base, required = pair
    arms = given_by(answers, base), given_by(answers, method)
    both = [prompt for prompt in arms[0] if prompt in arms[1]]
    columns = [
        np.array([getattr(arm[prompt], key) for prompt in both], dtype=float)
        for arm in arms
        for key in ("seconds", "tokens")
    ]
    interval = bca_interval(ratio_of_sums, columns)
    detail = {} if interval is None else {"ci_low": interval.low, "ci_high": interval.high}
    return Figure(name, float(ratio_of_sums(*columns)), "x", required, noisy, {**detail, "prompts": len(both)})


def drafting(answers: Iterable[Answer]) -> dict[str, Any]:
    """How often was drafted, and with what success: shares in percent, mat in tokens a step."""
    answers = list(answers)
    records = [record for answer in answers for record in answer.records]
    drafted = [record for record in records if record.num_draft_tokens]
    tokens = sum(record.num_emitted for record in records)
    proposed = sum(record.num_draft_tokens or 0 for record in drafted)
    accepted = sum(record.num_accepted_spine for record in drafted)
    return {
        "speculating_steps_%": 100.0 * len(drafted) / len(records),
        "speculated_tokens_%": 100.0 * sum(record.num_emitted for record in drafted) / tokens,
        "acceptance": accepted / proposed if proposed else None,
        "mat": tokens / len(records),
        **searching(answers),
    }


def searching(answers: Iterable[Answer]) -> dict[str, Any]:
    """How many searches changed or confirmed a set, their share of decode time, and how often the guard stopped."""
    answers = list(answers)
    choices = [choice.values for answer in answers for choice in answer.choices]
    return {
        "recorded_searches": sum(values.get("search_s") is not None for values in choices),
        "adapting_%": 100.0
        * sum(record.adapt_s for answer in answers for record in answer.records)
        / sum(answer.seconds for answer in answers),
        "guard_stops": sum(values.get("reason") == "guard" for values in choices),
    }
