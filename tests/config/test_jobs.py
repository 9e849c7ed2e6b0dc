"""The table that closes a sweep."""

from __future__ import annotations

import pytest

from specbench.config.jobs import JobRecord, table


def records(*outcomes: tuple[str, float | None], words: tuple[str, ...] = ()) -> list[JobRecord]:
    """One job a method, with its status and objective; `words` are those of all."""
    each = enumerate(outcomes)
    return [JobRecord(n, [f"method=m{n}", *words], 0.0, status, value) for n, (status, value) in each]


def test_words_of_all_jobs_are_said_once() -> None:
    lines = table(records(("done", 1.0), ("failed", None), words=("model=tiny", "task=gsm8k"))).splitlines()
    assert lines[0] == "all jobs: model=tiny task=gsm8k"
    assert [line.split() for line in lines[1:]] == [
        ["job", "overrides", "status", "objective"],
        ["0", "method=m0", "done", "1.000"],
        ["1", "method=m1", "failed", "-"],
        ["1", "of", "2", "jobs", "done"],
    ]


def test_jobs_without_common_words_have_no_line_for_them() -> None:
    assert table(records(("done", 1.0), ("done", 2.0))).splitlines()[0].split()[0] == "job"


@pytest.mark.parametrize(
    ("outcomes", "told"),
    [
        ([("planned", 60.0), ("planned", 120.0)], "2 jobs planned, none run: about 3 min"),
        ([("done", 0.0), ("planned", 120.0)], "1 jobs planned, none run: about 2 min; 1 are done already"),
        (
            [("planned", None)],
            "1 jobs planned, none run: about 0 min, and 1 jobs that no earlier run tells the time of",
        ),
        ([("user error", None), ("planned", 60.0)], "1 jobs planned, none run: about 1 min"),
    ],
)
def test_a_dry_run_tells_what_is_left(outcomes: list[tuple[str, float | None]], told: str) -> None:
    assert table(records(*outcomes, words=("dry_run=true",))).splitlines()[-1] == told
