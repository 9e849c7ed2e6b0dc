"""GSM8K: school mathematics in words, scored by the final number (openai/grade-school-math)."""

from __future__ import annotations

from collections.abc import Sequence

from specbench.tasks.base import SampleTask, TaskOptions
from specbench.tasks.scoring.numeric import numeric_accuracy
from specbench.tasks.sources import Row, embedded_rows, hub_rows, local_rows
from specbench.types import Sample

INSTRUCTION = (
    "Reason step by step. Then finish with one last line of the form\n"
    "#### <answer>\n"
    "where <answer> is the final number and nothing else."
)


def build(options: TaskOptions) -> SampleTask:
    """The test (or train) split; accuracy of the number after "####", or of the last number of the answer."""
    options.only_chat("gsm8k")
    prefix = "gsm8k" if options.split == "test" else f"gsm8k/{options.split}"
    items = tuple(_sample(f"{prefix}/{index}", row) for index, row in enumerate(rows(options)))
    return SampleTask(options.named("gsm8k"), 256, ("accuracy",), items, score, options.history)


def rows(options: TaskOptions) -> list[Row]:
    """Rows with `question` and `answer` (a worked solution ending in "#### n")."""
    if options.source == "hub":
        return hub_rows(options, "openai/gsm8k", "main", split=options.split)
    if options.source == "local":
        return local_rows(options, f"gsm8k/{options.split}.jsonl")
    return embedded_rows("gsm8k_mini")


def score(sample: Sample, answers: Sequence[str]) -> dict[str, float]:
    """1.0 where the final number of the only answer equals the reference's."""
    return {"accuracy": numeric_accuracy(answers[0], sample.reference)}


def _sample(name: str, row: Row) -> Sample:
    prompt = f"{row.text('question').strip()}\n\n{INSTRUCTION}"
    return Sample(id=name, turns=(prompt,), reference=row.text("answer"))
