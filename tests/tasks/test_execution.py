"""Programs written by a model: what passes, and what the separate process holds back."""

from __future__ import annotations

import socket
import tempfile
import time
from pathlib import Path

import pytest

from specbench.tasks import build_task, select
from specbench.tasks.scoring.execution import Limits, run_program


def test_a_program_that_reaches_its_end_passes() -> None:
    assert run_program("assert sum([1, 2]) == 3").passed
    assert run_program("print('x' * 10_000_000)").passed
    assert run_program("if __name__ == '__main__':\n    input('a demonstration, not a part of the answer')").passed
    assert run_program("from dataclasses import dataclass\n@dataclass\nclass A:\n    x: 'int' = 1\nassert A().x").passed


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("assert 1 == 2, 'unequal'", "AssertionError: unequal"),
        ("def broken(:", "SyntaxError"),
        ("import sys\nsys.exit(0)\nassert False", "SystemExit"),
        ("raise SystemExit", "SystemExit"),
        ("import os\nos._exit(0)", "ended before the tests"),
        ("print('passed')\nimport os\nos._exit(0)", "ended before the tests"),
        ("input()", "EOFError"),
        ("def f(): f()\nf()", "RecursionError"),
        ("data = 'x' * (1 << 32)", "MemoryError"),
        ("blocks = []\nwhile True: blocks.append(bytes(1 << 28))", "MemoryError"),
        ("import subprocess\nsubprocess.run(['true'])", "not allowed here"),
        ("import os\nos.system('true')", "not allowed here"),
        ("import os\nos.fork()", "not allowed here"),
        ("file = open('big', 'wb')\nwhile True: file.write(bytes(1 << 20))", "File too large"),
    ],
)
def test_a_program_that_does_not_fails_with_its_reason(program: str, reason: str) -> None:
    outcome = run_program(program)
    assert not outcome.passed
    assert reason in outcome.reason


@pytest.mark.parametrize("limits", [Limits(wall_s=0.5), Limits(cpu_s=1)])
def test_an_endless_loop_is_ended(limits: Limits) -> None:
    start = time.monotonic()
    outcome = run_program("while True: pass", limits)
    assert not outcome.passed
    assert "allowed" in outcome.reason
    assert time.monotonic() - start < 20


def test_a_program_that_disarms_the_timer_is_killed_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.tasks.scoring.execution._GRACE_S", 0.5)
    program = "import signal, time\nsignal.setitimer(signal.ITIMER_REAL, 0)\ntime.sleep(60)"
    assert "timeout" in run_program(program, Limits(wall_s=0.5)).reason


@pytest.mark.parametrize(
    "attempt",
    [
        "open({path!r}, 'w').write('x')",
        "import pathlib\npathlib.Path({path!r}).mkdir()",
        "import os\nos.rename({kept!r}, {path!r})",
        "import os\nos.remove({kept!r})",
        "import os\nos.close(os.open({path!r}, os.O_CREAT | os.O_WRONLY))",
        "import os\nos.chdir('/')\nopen({path!r}, 'w')",
        "import os\nos.symlink({folder!r}, 'link')\nopen('link/new', 'w')",
    ],
)
def test_nothing_is_written_outside_its_folder(tmp_path: Path, attempt: str) -> None:
    kept = tmp_path / "kept"
    kept.write_text("here", encoding="utf-8")
    program = attempt.format(path=str(tmp_path / "new"), kept=str(kept), folder=str(tmp_path))
    outcome = run_program(program)
    assert not outcome.passed
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_its_own_folder_can_be_used_and_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = (
        "import os, tempfile\nopen('a.txt', 'w').write('x')\nos.rename('a.txt', 'b.txt')\n"
        "with tempfile.TemporaryDirectory() as folder:\n    open(folder + '/c', 'w').write('y')\n"
        "assert open('b.txt').read() == 'x'"
    )
    assert run_program(program).reason == "passed"
    assert list(tmp_path.iterdir()) == []


def test_no_connection_can_be_made() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        outcome = run_program(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)")
        assert not outcome.passed
        with pytest.raises(TimeoutError):
            server.accept()


def test_threads_left_running_do_not_delay_the_verdict() -> None:
    start = time.monotonic()
    program = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()"
    assert run_program(program).passed
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("style", ["chat", "completion"])
def test_canonical_solutions_of_humaneval_pass_and_wrong_ones_fail(style: str) -> None:
    task = build_task("humaneval", source="embedded", style=style, execute_code=True)
    for sample in select(task.samples(), 10):
        whole = sample.metadata["prompt"] + sample.reference
        answer = sample.reference if sample.raw else f"Here it is:\n```python\n{whole}\n```\nDone."
        assert task.score(sample, [answer]) == {"pass_at_1": 1.0}, sample.id
    sample = task.samples()[0]
    assert task.score(sample, ["    return None\n"]) == {"pass_at_1": 0.0}
    assert task.score(sample, ["    import sys; sys.exit(0)\n"]) == {"pass_at_1": 0.0}


def test_reference_code_of_mbpp_passes(shared_data: Path) -> None:
    for source in ("embedded", "local"):
        task = build_task("mbpp", source=source, data_dir=shared_data / "benchmarks", execute_code=True)
        with_setup = [sample for sample in task.samples() if sample.metadata["setup"]]
        for sample in select(task.samples(), 10) + with_setup:
            assert task.score(sample, [f"```python\n{sample.reference}\n```"]) == {"pass_at_1": 1.0}, sample.id
            assert task.score(sample, ["I cannot."]) == {"pass_at_1": 0.0}


@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_no_code_runs_unless_asked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"specbench.tasks.{name}.run_program", lambda program: pytest.fail("code was run"))
    task = build_task(name, source="embedded")
    assert task.score_names == ("pass_at_1",)
    assert task.score(task.samples()[0], ["```python\nprint(1)\n```"]) == {}
