"""What the documentation tells a user to type can be typed, and the files it names are there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from specbench.config import RunConfig, compose_each

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOT_RUNS = ("method=repeat", "method=ar,repeat", "model=NAME", "-sc ")  # a reader's additions; tab completion
HYDRA_ONLY = ("-m", "-sc", "--help", "--cfg", "job", "install=bash")


def commands() -> list[str]:
    """Every `python run.py ...` of the documentation, once."""
    found = [command for page in PAGES for command in re.findall(r"python run\.py([^`\n#]*)", page.read_text())]
    kept = dict.fromkeys(command.strip() for command in found)
    return [command for command in kept if command and not any(name in command for name in NOT_RUNS)]


def one_job(command: str) -> list[str]:
    """The overrides of the first job of a command: of a comma list or a glob, one value."""
    words = [word for word in shlex.split(command) if word not in HYDRA_ONLY]
    words = [word for word in words if not word.startswith(("hydra/", "experiment="))]
    return [re.sub(r"=glob\(.*\)$", "=ar", word).split(",")[0] for word in words]


def test_there_are_commands_to_check() -> None:
    assert len(commands()) >= 12


@pytest.mark.parametrize("command", commands())
def test_commands_compose(command: str) -> None:
    (found,) = compose_each([one_job(command)])
    assert isinstance(found, RunConfig), found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [page.parent / target for target in re.findall(r"\]\(([^)#:]+)\)", text)]
    code = [ROOT / target for target in re.findall(r"`((?:specbench|conf|scripts|tests|docs)/[\w./]+)`", text)]
    example = {ROOT / "specbench/methods/repeat.py", ROOT / "conf/method/repeat.yaml", ROOT / "docs/methods/repeat.md"}
    missing = [str(path) for path in [*links, *code] if not path.exists() and path not in example]
    assert missing == []


def test_scripts_of_the_documentation_exist() -> None:
    named = {name for page in PAGES for name in re.findall(r"python (scripts/\w+\.py)", page.read_text())}
    assert named
    assert sorted(name for name in named if not (ROOT / name).is_file()) == []


def test_make_targets_of_the_documentation_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    blocks = [line for page in PAGES for line in re.findall(r"^make ([a-z -]+?)(?:\s*#.*)?$", page.read_text(), re.M)]
    named = {target for line in blocks for target in line.split()}
    assert {"demo", "test", "lint", "types"} <= named
    assert named <= targets


def test_every_method_has_its_page() -> None:
    """A page a method; variants and the outside references share one."""
    pages = {path.stem for path in (ROOT / "docs" / "methods").glob("*.md")}
    modules = {
        match.group(1)
        for path in (ROOT / "conf" / "method").glob("*.yaml")
        if (match := re.search(r"_target_: specbench\.methods\.(\w+?)_?\.", path.read_text()))
    }
    assert modules <= pages


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 250


def test_every_experiment_takes_as_long_as_its_file_says() -> None:
    page = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", page.partition("## The files")[2], re.MULTILINE)
    assert {name for name, _ in rows} == {path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml")}
    for name, told in rows:
        text = (ROOT / "conf" / "experiment" / f"{name}.yaml").read_text(encoding="utf-8")
        wanted = "nothing after `headline`" if told == "shared" else f"embedded {told.removesuffix(' + shared')} "
        assert wanted in text
