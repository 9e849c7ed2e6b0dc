"""MT-Bench: eight kinds of conversation, two turns each; answers are exported for a judge, no score is computed."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from specbench.tasks.base import SampleTask, TaskOptions, no_score
from specbench.tasks.sources import Row, embedded_rows, hub_rows, local_rows
from specbench.types import DataError, Sample

CATEGORIES = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
FIRST_QUESTION_ID = 81  # FastChat numbers its 80 questions 81..160; the Hub's copy keeps the order but not the number


def build(options: TaskOptions) -> SampleTask:
    """The 80 questions (hub), those among Spec-Bench's questions (local), or one of each kind (embedded)."""
    options.only_chat("mt_bench")
    items = tuple(question_sample(row) for row in rows(options))
    return SampleTask(options.named("mt_bench"), 256, (), items, no_score, options.history)


def rows(options: TaskOptions) -> list[Row]:
    """Rows with `question_id`, `category`, `turns` and, where there is one, `reference` (one text a turn)."""
    if options.source == "hub":
        asked = hub_rows(options, "HuggingFaceH4/mt_bench_prompts", None, split="train")
        return [_from_hub(index, row) for index, row in enumerate(asked)]
    if options.source == "embedded":
        return embedded_rows("mt_bench_mini")
    asked = local_rows(options, "spec_bench/question.jsonl")
    chosen = [row for row in asked if row.text("category") in CATEGORIES]
    if not chosen:
        where = asked[0].where.rsplit(",", 1)[0]
        raise DataError(f"{where}: no question of the categories {', '.join(CATEGORIES)} (needed by mt_bench)")
    return chosen


def question_sample(row: Row) -> Sample:
    """A sample of a FastChat question file, its turns exactly as in the file."""
    question_id = row.integer("question_id")
    return Sample(
        id=str(question_id),
        turns=row.texts("turns"),
        category=row.text("category"),
        reference=row.data.get("reference") or None,
        metadata={"question_id": question_id},
    )


def fastchat_answers(rows: Iterable[tuple[int | str, Sequence[str]]], model_id: str) -> list[dict[str, Any]]:
    """Answers in FastChat's model_answer layout, sorted by question; `rows`: (question_id, one text a turn).

    `answer_id` depends on the model and the question only, so that a second export gives the same ids.
    """
    now = time.time()
    answers = [
        {
            "question_id": int(question_id),
            "answer_id": uuid.uuid5(uuid.NAMESPACE_URL, f"{model_id}/{question_id}").hex,
            "model_id": model_id,
            "choices": [{"index": 0, "turns": list(turns)}],
            "tstamp": now,
        }
        for question_id, turns in rows
    ]
    return sorted(answers, key=lambda answer: answer["question_id"])


def _from_hub(index: int, row: Row) -> Row:
    data = {
        "question_id": FIRST_QUESTION_ID + index,
        "category": row.text("category"),
        "turns": list(row.texts("prompt")),
        "reference": row.data.get("reference"),
    }
    return Row(data, row.where)
