"""Spec-Bench: 480 questions in six subsets (conversation, translation, summarisation, QA, mathematics, RAG)."""

from __future__ import annotations

from collections.abc import Sequence

from specbench.tasks import cnn_dm, gsm8k, mt_bench
from specbench.tasks.base import SampleTask, TaskOptions
from specbench.tasks.scoring.numeric import numeric_accuracy
from specbench.tasks.scoring.rouge import ROUGE_NAMES, rouge_scores
from specbench.tasks.sources import Row, embedded_rows, local_rows
from specbench.types import DataError, Sample

SUBSETS = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
_BORROWED = 4  # articles and problems that the embedded set borrows from the embedded cnn_dm and gsm8k


def build(options: TaskOptions) -> SampleTask:
    """All six subsets, turns exactly as in the file; the thirteen categories of the file are kept.

    Scored: accuracy for math_reasoning, ROUGE for summarization. The other subsets have no reference that fits a score.
    """
    options.only_chat("spec_bench")
    items = tuple(mt_bench.question_sample(row) for row in rows(options))
    return SampleTask(options.named("spec_bench"), 256, ("accuracy", *ROUGE_NAMES), items, score, options.history)


def subset(category: str) -> str:
    """The subset that a category belongs to: the eight kinds of conversation make up `mt_bench`."""
    return "mt_bench" if category in mt_bench.CATEGORIES else category


def rows(options: TaskOptions) -> list[Row]:
    """Rows with `question_id`, `category`, `turns` and, where there is one, `reference`."""
    if options.source == "hub":
        raise DataError(
            "spec_bench is not on the Hub as a data set; download question.jsonl of github.com/hemingkx/Spec-Bench to "
            "FOLDER/spec_bench/ and set data=local data.dir=FOLDER, or use data=embedded"
        )
    found = local_rows(options, "spec_bench/question.jsonl") if options.source == "local" else _mini(options)
    legal = (*mt_bench.CATEGORIES, *SUBSETS[1:])
    for row in found:
        if row.text("category") not in legal:
            raise DataError(f"{row.where}: category {row.text('category')!r}; legal are {', '.join(legal)}")
    return found


def score(sample: Sample, answers: Sequence[str]) -> dict[str, float]:
    """`accuracy` for math_reasoning, ROUGE for summarization, {} for all others."""
    if not sample.reference:
        return {}
    if sample.category == "math_reasoning":
        return {"accuracy": numeric_accuracy(answers[0], sample.reference[0])}
    if sample.category == "summarization":
        return rouge_scores(answers[0], sample.reference[0])
    return {}


def _mini(options: TaskOptions) -> list[Row]:
    """The embedded questions, in the order of the six subsets, numbered from 1."""
    articles = [(row, row.text("article"), row.text("highlights")) for row in cnn_dm.rows(options)[:_BORROWED]]
    problems = [(row, row.text("question"), row.text("answer")) for row in gsm8k.rows(options)[:_BORROWED]]
    found = mt_bench.rows(options) + embedded_rows("spec_bench_mini")
    found += [_single(row, "summarization", f"Summarize: {text}", ref) for row, text, ref in articles]
    found += [_single(row, "math_reasoning", text, ref) for row, text, ref in problems]
    found.sort(key=lambda row: SUBSETS.index(subset(row.text("category"))))
    return [Row({**row.data, "question_id": number}, row.where) for number, row in enumerate(found, start=1)]


def _single(row: Row, category: str, turn: str, reference: str) -> Row:
    return Row({"category": category, "turns": [turn], "reference": [reference]}, row.where)
