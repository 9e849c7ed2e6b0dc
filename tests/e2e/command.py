"""run.py as a process of its own that starts at once: a server imports everything and forks a child a command."""

from __future__ import annotations

import multiprocessing
import os
import resource
import runpy
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRELOADED = ["specbench.runner", "hydra.main", "transformers.models.llama.configuration_llama"]

_context = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Done:
    """An ended command: exit code (negative: the signal that killed it) and what it printed."""

    code: int
    stdout: str
    stderr: str

    @property
    def error_lines(self) -> list[str]:
        return [line for line in self.stderr.splitlines() if line.startswith("ERROR")]


class Command:
    """A started `python run.py ...`; its output goes to files."""

    def __init__(self, words: list[str], folder: Path, *, environment: Mapping[str, str], file_bytes: int = 0) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        _context.set_forkserver_preload(PRELOADED)
        arguments = (words, str(folder), dict(environment), file_bytes)
        self._process = _context.Process(target=_child, args=arguments)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        """SIGKILL: nothing is cleaned up."""
        self._process.kill()
        self._process.join()

    def wait(self, seconds: float = 240) -> Done:
        """What the command gave; it must end within `seconds`."""
        self._process.join(seconds)
        if self.running:
            self.kill()
            raise TimeoutError(f"still running after {seconds} s:\n{self._text('stderr')}")
        code = self._process.exitcode
        assert code is not None
        return Done(code, self._text("stdout"), self._text("stderr"))

    def _text(self, name: str) -> str:
        return (self._folder / name).read_text(encoding="utf-8", errors="replace")


def _child(words: list[str], folder: str, environment: dict[str, str], file_bytes: int) -> None:
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.chdir(folder)
    os.environ.update(environment)
    if file_bytes:  # writing more into one file fails
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    # Tests that a script runs in the background are born deaf to Ctrl-C; a command at a terminal is not.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [str(ROOT / "run.py"), *words]
    runpy.run_path(sys.argv[0], run_name="__main__")
