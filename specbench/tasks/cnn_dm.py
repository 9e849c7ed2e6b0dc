"""CNN/DailyMail 3.0.0: news articles to be summarised, scored by ROUGE against the highlights."""

from __future__ import annotations

from collections.abc import Sequence

from specbench.tasks.base import SampleTask, TaskOptions
from specbench.tasks.scoring.rouge import ROUGE_NAMES, rouge_scores
from specbench.tasks.sources import Row, embedded_rows, hub_rows, local_rows
from specbench.types import DataError, Sample

INSTRUCTION = "Summarise the following news article in three to four sentences."
_SPEC_BENCH_PREFIX = "Summarize: "  # how Spec-Bench asks; our own instruction takes its place


def build(options: TaskOptions) -> SampleTask:
    """The test or train split (hub), or the articles among Spec-Bench's questions (local)."""
    options.only_chat("cnn_dm")
    items = tuple(_sample(row) for row in rows(options))
    return SampleTask(options.named("cnn_dm"), 128, ROUGE_NAMES, items, score, options.history)


def rows(options: TaskOptions) -> list[Row]:
    """Rows with `id`, `article` and `highlights`."""
    if options.source == "hub":
        return hub_rows(options, "abisee/cnn_dailymail", "3.0.0", split=options.split)
    if options.source == "embedded":
        return embedded_rows("cnn_dm_mini" if options.split == "test" else "cnn_dm_held_out")
    asked = local_rows(options, "spec_bench/question.jsonl")
    articles = [_from_spec_bench(row) for row in asked if row.text("category") == "summarization"]
    if not articles:
        raise DataError(f"{asked[0].where.rsplit(',', 1)[0]}: no question of category summarization (needed by cnn_dm)")
    return articles


def score(sample: Sample, answers: Sequence[str]) -> dict[str, float]:
    """ROUGE-1, ROUGE-2 and ROUGE-L F-measure of the only answer."""
    return rouge_scores(answers[0], sample.reference)


def _from_spec_bench(row: Row) -> Row:
    article = row.texts("turns")[0].removeprefix(_SPEC_BENCH_PREFIX)
    data = {"id": str(row.integer("question_id")), "article": article, "highlights": row.texts("reference")[0]}
    return Row(data, row.where)


def _sample(row: Row) -> Sample:
    prompt = f"{INSTRUCTION}\n\n{row.text('article').strip()}"
    return Sample(id=f"cnn_dm/{row.text('id')}", turns=(prompt,), reference=row.text("highlights"))
