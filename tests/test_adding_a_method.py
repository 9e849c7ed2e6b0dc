"""docs/adding_a_method.md works as it is written: its code blocks, put where they say, make a method."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BLOCK = re.compile(r"^```\w+ (write|append)=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

DECODE = """
import sys
from pathlib import Path
import torch
import specbench
from specbench.config import compose
from specbench.decoding.target import Target
from specbench.methods.build import Parts, build_generator
from specbench.models.checkpoint import load_decoder
from specbench.models.tiny import write_pair
from specbench.types import Sampling

assert Path(specbench.__file__).is_relative_to(Path.cwd()), specbench.__file__
target, _ = write_pair(Path("tiny"), "zero")
decoder = load_decoder(target, dtype=torch.float32, device="cpu")
answers = {}
for method in ("ar", "repeat"):
    config = compose(["model=tiny", f"method={method}", "hardware.dtype=float32"]).method
    generator = build_generator(config, Parts(target=Target(decoder), sampling=Sampling()))
    answers[method] = generator.generate(list(b"once more, once more"), max_new_tokens=48, seed=0)
assert answers["repeat"].tokens == answers["ar"].tokens
steps = answers["repeat"].steps
assert max(step.num_draft_tokens for step in steps) == 4
print("accepted", sum(step.num_accepted for step in steps))
"""


COMPOSE = """
import sys
from specbench.config import RunConfig, compose_each, sweep_jobs

for command in sys.argv[1:]:
    found = compose_each(sweep_jobs([word for word in command.split() if word != "-m"]))
    assert all(isinstance(config, RunConfig) for config in found), found
    print(len(found))
"""


@pytest.fixture
def tries(repo_root: Path) -> list[str]:
    """The words of the commands below `Try it`."""
    page = (repo_root / "docs" / "adding_a_method.md").read_text(encoding="utf-8")
    return re.findall(r"^python run\.py (.*)$", page.partition("## Try it")[2], re.MULTILINE)


@pytest.fixture
def followed(repo_root: Path, tmp_path: Path) -> Path:
    """A copy of the package and its configuration in which the page was followed."""
    for folder in ("specbench", "conf"):
        shutil.copytree(repo_root / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(repo_root / "run.py", tmp_path)
    blocks = BLOCK.findall((repo_root / "docs" / "adding_a_method.md").read_text(encoding="utf-8"))
    assert [action for action, _, _ in blocks] == ["append", "write", "write"]
    for action, name, text in blocks:
        file = tmp_path / name
        assert file.exists() == (action == "append")
        with file.open("a", encoding="utf-8") as stream:
            stream.write(f"\n\n{text}" if action == "append" else text)
    return tmp_path


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_the_example_decodes_like_ar(followed: Path) -> None:
    done = run(followed, "-c", DECODE)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 0


def test_the_commands_to_try_compose(followed: Path, tries: list[str]) -> None:
    done = run(followed, "-c", COMPOSE, *tries)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "4", "2"]


@pytest.mark.slow
def test_the_commands_to_try_work(followed: Path, tries: list[str]) -> None:
    where = [f"paths.{name}_dir={followed / name}" for name in ("results", "cache")]
    machine = ["hardware.device=cpu", "hardware.num_threads=1", "measure.warmup=0", "measure.exclusive=false"]
    for command in tries:
        small = [*machine, *where, "num_samples=1", "sampling.max_new_tokens=8"]
        done = run(followed, "run.py", *command.split(), *small)
        assert done.returncode == 0, f"{command}: {done.stderr}"


def test_its_keys_are_checked_like_any_other(followed: Path) -> None:
    typo = run(followed, "run.py", "method=repeat", "method.perid=2", "--cfg", "job")
    assert typo.returncode != 0
    assert "did you mean 'method.period'" in typo.stderr
    assert "repeat" in run(followed, "run.py", "--help").stdout


def test_the_example_is_formatted_and_typed_like_the_rest(followed: Path, repo_root: Path) -> None:
    tools = Path(sys.executable).parent
    files = ["specbench/methods/repeat.py", "specbench/config/methods.py"]
    for tool in (["ruff", "check"], ["ruff", "format", "--check"]):
        command = [str(tools / tool[0]), *tool[1:], "--config", str(repo_root / "pyproject.toml"), *files]
        done = subprocess.run(command, cwd=followed, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
