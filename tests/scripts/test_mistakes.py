"""Plain mistakes in the words of a script are one line and exit code 2, told before a model is loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from scripts import (
    convert_mla,
    freeze_runs,
    make_figures,
    make_tables,
    mla_report,
    profile_hardware,
    report,
    run_paper,
    search_layers,
    specbench_files,
    train_controller,
    train_pacer,
)
from specbench.config.script import exit_code
from specbench.results.frozen import FOLDER
from specbench.types import ConfigError

PAPER = str(Path(__file__).resolve().parents[2] / FOLDER)
Refused = Callable[..., str]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Start a script with words that cannot work; give the one line that says so."""

    def start(script: ModuleType, *words: str, code: int = 2) -> str:
        monkeypatch.setattr(sys, "argv", [f"{script.__name__}.py", *words])
        assert script.main() == code
        said = capsys.readouterr()
        (line,) = said.err.splitlines()
        return line

    return start


@pytest.fixture
def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    for script in (profile_hardware, search_layers):
        monkeypatch.setattr(script, "Session", fail)


@pytest.mark.usefixtures("nothing_is_loaded")
def test_a_method_that_a_script_is_not_for_is_refused_before_loading(refused: Refused) -> None:
    assert "method=pld: has no method.profile_lengths. Legal: knapspec" in refused(
        profile_hardware, "model=tiny", "method=pld"
    )
    assert "use swift, confl or knapspec" in refused(search_layers, "model=tiny", "method=pld", "--check", "1")
    given = refused(search_layers, "model=tiny", "--check", "1", "method.skip_set=[2,3]")  # words after an option too
    assert "method.skip_set=[2, 3]: a set that is given is not searched for" in given


def test_a_cache_folder_that_cannot_be_made_is_named(refused: Refused) -> None:
    line = refused(profile_hardware, "model=tiny", "hardware.device=cpu", "paths.cache_dir=/dev/null/x")
    assert "/dev/null/x: cannot make this folder (Not a directory)" in line
    assert "paths.cache_dir" in line


@pytest.mark.slow
def test_files_that_cannot_be_read_or_written_are_named(refused: Refused, tmp_path: Path) -> None:
    assert "/dev/null: cannot make this folder" in refused(make_tables, PAPER, "--out", "/dev/null")
    assert "/dev/null" in refused(report, PAPER, "--html", "/dev/null/page.html")
    assert "/nope" in refused(specbench_files, "score", "/nope", "/nope", "--tokenizer", "/nope")
    assert "/nope" in refused(specbench_files, "export", "/nope", str(tmp_path))
    answers = tmp_path / "answers.jsonl"
    answers.write_text("")
    line = refused(specbench_files, "score", str(answers), str(answers), "--tokenizer", str(tmp_path))
    assert f"--tokenizer {tmp_path}: no folder with a tokenizer" in line


def test_a_folder_is_one_word_everywhere_and_must_be_there(refused: Refused) -> None:
    for script in (make_tables, make_figures):
        assert refused(script, "/nope").startswith("error: /nope: neither frozen results nor runs")
    assert refused(make_figures, "--results", "/nope").startswith("error: /nope: neither")
    assert "/dev/null: cannot make this folder" in refused(make_figures, PAPER, "--out", "/dev/null")
    assert refused(mla_report, "/nope").startswith("error: /nope: no such folder")


def test_words_may_stand_on_both_sides_of_an_option(refused: Refused) -> None:
    line = refused(convert_mla, "model=tiny", "--out", "/nope", "method.converter=mine")
    assert line.startswith("error: method.converter=mine: not a legal value")


@pytest.mark.parametrize(
    ("script", "work", "words"),
    [
        (run_paper, "run_paper", ()),
        (train_pacer, "fit", ()),
        (train_controller, "fit", ("tuned",)),
        (search_layers, "find", ()),
        (freeze_runs, "freeze", ()),
    ],
)
def test_an_interrupt_is_one_line_and_130(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, script: ModuleType, work: str, words: tuple[str, ...]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(script, work, interrupted)
    assert refused(script, *words, code=130).startswith("interrupted: ")


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(error: Exception) -> None:
        raise error

    assert exit_code(lambda: None) == 0
    assert exit_code(lambda: 1) == 1
    assert exit_code(lambda: fail(ConfigError("key=1: must be 2"))) == 2
    assert exit_code(lambda: fail(OSError(28, "No space left on device"))) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: key=1: must be 2",
        "error: cannot read or write: [Errno 28] No space left on device",
    ]
    with pytest.raises(ValueError, match="a bug"):
        exit_code(lambda: fail(ValueError("a bug")))
