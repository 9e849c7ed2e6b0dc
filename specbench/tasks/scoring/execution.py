"""Run a program that a model wrote, in a separate limited process, and say whether it reached its end.

The program proves that it ran to the end, tests included, by the driver's nonce: an exit code can be had with
`sys.exit(0)` before the first test. What is limited, and how: see `sandbox_driver.py`.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

DRIVER = Path(__file__).with_name("sandbox_driver.py")
_ENDED_BY = {
    int(signal.SIGALRM): "timeout: more wall time than allowed",
    int(signal.SIGXCPU): "timeout: more CPU time than allowed",
    int(signal.SIGKILL): "killed: more CPU time or memory than allowed",
    int(signal.SIGXFSZ): "a file grew larger than allowed",
}
_GRACE_S = 5.0  # for starting the interpreter, on top of the program's own wall time


@dataclass(frozen=True)
class Limits:
    """What one program may use."""

    wall_s: float = 25.0  # a reference solution of MBPP (123) takes 8 s
    cpu_s: int = 20
    memory_bytes: int = 1 << 30
    file_bytes: int = 16 << 20


@dataclass(frozen=True)
class Outcome:
    """Whether the program and its tests ran to the end, and if not, why."""

    passed: bool
    reason: str


def run_program(program: str, limits: Limits | None = None) -> Outcome:
    """Run Python source in a temporary folder that is removed afterwards; its output is dropped."""
    limits = limits or Limits()
    nonce = secrets.token_hex(16)
    request = json.dumps({"program": program, "nonce": nonce, "limits": asdict(limits)})
    with tempfile.TemporaryDirectory(prefix="specbench-run-", ignore_cleanup_errors=True) as folder:
        reply, signal_number = _run_driver(request, folder, limits.wall_s + _GRACE_S)
    if reply.startswith(nonce):
        reason = reply.removeprefix(nonce).strip()
        return Outcome(reason == "passed", reason)
    return Outcome(False, _ENDED_BY.get(signal_number, "the process ended before the tests did"))


def _run_driver(request: str, folder: str, wall_s: float) -> tuple[str, int]:
    """The driver's report ("" without one) and the signal that ended it (0: none)."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-B", str(DRIVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={"PATH": os.defpath, "HOME": folder, "TMPDIR": folder, "OPENBLAS_NUM_THREADS": "1"},
        start_new_session=True,
        encoding="utf-8",
        errors="replace",
    )
    try:
        reply, _ = process.communicate(request, timeout=wall_s)
    except subprocess.TimeoutExpired:
        reply = ""
    finally:
        returncode = process.poll()
        _kill_group(process)
    return reply, signal.SIGALRM if returncode is None else max(0, -returncode)


def _kill_group(process: subprocess.Popen[str]) -> None:
    """End the process and everything that it may have started in its session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    process.communicate()
