"""From the stored rows of a run to Spec-Bench conversations."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specbench.results.schema import KEY, METHOD, WITHOUT_NUMBERS, Row
from specbench.results.specbench_files import Conversation

# Tasks that are a Spec-Bench subset under another name; every other task keeps the category of its samples.
CATEGORIES = {"gsm8k": "math_reasoning", "cnn_dm": "summarization"}
EMBEDDED_SUFFIX = "_mini"


def conversations(
    samples: Iterable[Row], steps: Iterable[Row], *, task: str, model_id: str, arm: str = METHOD, repeat: int = 0
) -> list[Conversation]:
    """One conversation a sample: the used rows of one arm and repeat of a run, turns in order.

    `samples` and `steps` are plain rows of the stored schema. A sample with a failed or skipped turn is a failed
    conversation. Wall time is prefill + decode.
    """
    emitted: dict[tuple[Any, ...], list[int]] = {}
    for step in sorted(steps, key=lambda row: row["step"]):
        emitted.setdefault(_key(step), []).append(step["num_emitted"])
    turns: dict[str, list[Row]] = {}
    for row in sorted(samples, key=lambda row: row["turn"]):
        if row["used"] and row["arm"] == arm and row["repeat"] == repeat:
            turns.setdefault(row["sample_id"], []).append(row)
    return [_conversation(rows, emitted, task, model_id) for rows in turns.values()]


def question_id(sample_id: str) -> int:
    """The number a sample id ends with (`81`, `gsm8k/12`), else one derived from its text: equal in every file."""
    last = sample_id.rsplit("/", 1)[-1]
    return int(last) if last.isdecimal() else int(hashlib.sha256(sample_id.encode()).hexdigest()[:12], 16)


def category(task: str, sample_category: str) -> str:
    """The Spec-Bench category of a sample of `task`."""
    name = task.removesuffix(EMBEDDED_SUFFIX)
    return CATEGORIES.get(name) or sample_category or name


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


def _conversation(
    rows: Sequence[Row], emitted: Mapping[tuple[Any, ...], list[int]], task: str, model_id: str
) -> Conversation:
    first = rows[0]
    identity, kind = question_id(first["sample_id"]), category(task, first["category"])
    failed = next((row for row in rows if row["finish_reason"] in WITHOUT_NUMBERS), None)
    if failed is not None:
        return Conversation(identity, kind, model_id, error=failed["error"] or failed["finish_reason"])
    lengths = [emitted.get(_key(row), []) for row in rows]
    return Conversation(
        question_id=identity,
        category=kind,
        model_id=model_id,
        turns=tuple((row["text"] or "").strip() for row in rows),
        decoding_steps=tuple(len(steps) for steps in lengths),
        new_tokens=tuple(row["num_tokens"] for row in rows),
        wall_time=tuple(row["prefill_s"] + row["decode_s"] for row in rows),
        accept_lengths=tuple(length for steps in lengths for length in steps),
        num_draft_tokens=_total(row["num_draft_tokens"] for row in rows),
        ext={"specbench": _details(rows)},
    )


def _total(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _details(rows: Sequence[Row]) -> dict[str, Any]:
    per_turn = ("tokens", "prompt_tokens", "prompt_sha256", "prefill_s", "num_draft_tokens", "seed")
    return {"sample_id": rows[0]["sample_id"]} | {name: [row.get(name) for row in rows] for name in per_turn}
