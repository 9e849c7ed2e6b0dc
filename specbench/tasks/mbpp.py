"""MBPP: short Python functions from one sentence and their tests (google-research; test split: ids 11 to 510)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from specbench.tasks.base import SampleTask, TaskOptions
from specbench.tasks.scoring.answer_code import extract_code
from specbench.tasks.scoring.execution import run_program
from specbench.tasks.sources import Row, embedded_rows, hub_rows, local_rows
from specbench.types import DataError, Sample

IDS = {"test": range(11, 511), "train": range(601, 975)}


def build(options: TaskOptions) -> SampleTask:
    """The test (or train) split; the prompt shows the tests, as is common practice."""
    options.only_chat("mbpp")

    def score(sample: Sample, answers: Sequence[str]) -> dict[str, float]:
        if not options.execute_code:
            return {}
        return {"pass_at_1": float(run_program(program(sample, answers[0])).passed)}

    items = tuple(_sample(row) for row in _rows(options))
    return SampleTask(options.named("mbpp"), 256, ("pass_at_1",), items, score, options.history)


def program(sample: Sample, answer: str) -> str:
    """The answer's code followed by the problem's tests, ready to run."""
    data = sample.metadata
    code = extract_code(answer, data["entry_point"])
    # The set-up code builds inputs with classes that the answer defines, so it comes after the answer.
    return "\n".join((code, data["setup"], *data["tests"])) + "\n"


def _rows(options: TaskOptions) -> list[Row]:
    if options.source == "embedded":
        return embedded_rows("mbpp_mini")
    if options.source == "hub":
        found = hub_rows(options, "google-research-datasets/mbpp", "full", split=options.split)
    else:
        found = local_rows(options, "mbpp/mbpp.jsonl")
    ids = IDS[options.split]
    chosen = [row for row in found if row.integer("task_id") in ids]
    if not chosen:
        raise DataError(
            f"{found[0].where}: no problem with a task_id of the {options.split} split "
            f"({ids[0]} to {ids[-1]}) in this data"
        )
    return chosen


def _sample(row: Row) -> Sample:
    tests = row.texts("test_list")
    setup = row.text("test_setup_code").replace("\r\n", "\n")
    listing = "\n".join((setup, *tests)).strip()
    prompt = (
        f"{row.text('text').strip()}\n\nThe code must pass these tests:\n\n```python\n{listing}\n```\n\n"
        "Answer with one fenced python code block that contains the function, with its imports and without the tests."
    )
    code = row.text("code")
    return Sample(
        id=f"mbpp/{row.integer('task_id')}",
        turns=(prompt,),
        reference=code,
        metadata={"entry_point": _entry_point(code, tests), "tests": tests, "setup": setup},
    )


def _entry_point(code: str, tests: Sequence[str]) -> str:
    """The function under test: called in the tests and defined by the reference solution."""
    called = re.findall(r"\b([A-Za-z_]\w*)\s*\(", "\n".join(tests))
    defined = set(re.findall(r"^(?:def|class)\s+(\w+)", code, re.MULTILINE))
    return next((name for name in called if name in defined), called[0] if called else "")
