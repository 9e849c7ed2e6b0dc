"""A run without its trained controller makes it before it decodes, once, and says so; or it names the command."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specbench.models.artefact import load_artefact
from specbench.results.files import read_json
from specbench.runner import session
from specbench.training import prompts
from specbench.types import ConfigError
from tests.few_documents import few_documents
from tests.runner.runs import TinyRun, measured, tiny_config

TEXTS = [f"Story {i} of a king who had {i} sons and told each of them to go and see the world." for i in range(40)]
FEW = ("artefact.num_prompts=6", "artefact.max_new_tokens=24", "sampling.max_new_tokens=16")


@pytest.fixture(autouse=True)
def few_texts() -> Iterator[None]:
    with few_documents(prompts, TEXTS, [f'def f{i}(a):\n    """{text}"""' for i, text in enumerate(TEXTS)]):
        yield


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory: Any) -> Path:
    """What is made here must not be found by the tests of other files."""
    made: Path = tmp_path_factory.mktemp("cache")
    return made


@pytest.fixture
def start(tmp_path: Path, own_cache: Path, calm: None) -> Any:
    return lambda *words: measured(tiny_config([*FEW, *words], tmp_path / "results", own_cache))


def used(done: TinyRun) -> list[dict[str, str]]:
    parts: list[dict[str, str]] = read_json(done.run_dir / "environment.json")["artefacts"]
    return parts


def told(caplog: Any) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


def test_a_gate_is_made_once_outside_the_timed_runs(start: Any, own_cache: Path, caplog: Any) -> None:
    with caplog.at_level(logging.INFO):
        first = start("method=pacer")
    assert first.error is None
    assert first.summary["exact_match_rate"] == 1.0
    (part,) = used(first)
    path = Path(part["path"])
    assert path.parent == own_cache / "controllers" / "made"
    card = load_artefact(path).card
    assert card["data"]["num_prompts"] == 6
    assert card["fit_s"] > 0
    assert path.stat().st_mtime < first.samples["started_at"].min()
    assert "no pacer is stored for this model, draft and setting: it is made now" in told(caplog)
    assert "collecting steps on 6 held-out prompts, about " in told(caplog)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        again = start("method=pacer", "seed=1")
    assert used(again) == [part]
    assert "made now" not in told(caplog)


@pytest.mark.slow
def test_other_kinds_learn_from_the_same_steps(start: Any, own_cache: Path, caplog: Any) -> None:
    start("method=pacer")
    with caplog.at_level(logging.INFO):
        for kind in ("scalars", "specdecpp", "tuned"):
            done = start("method=sps", f"method/controller={kind}")
            assert done.error is None
            assert [part["kind"] for part in used(done)] == [kind]
    assert "collecting steps" not in told(caplog)
    assert len(list((own_cache / "controllers" / "made").glob("steps-*"))) == 1


@pytest.mark.slow
def test_another_setting_gets_a_gate_of_its_own(start: Any) -> None:
    greedy, drawn, phrases = (
        used(start(*words))[0]["path"]
        for words in (
            ["method=pacer"],
            ["method=pacer", "sampling.temperature=0.7"],
            ["method=pacer_ouroboros"],
        )
    )
    assert len({greedy, drawn, phrases}) == 3
    assert load_artefact(Path(drawn)).key["sampling"].startswith("temperature=0.7")
    assert load_artefact(Path(phrases)).key["drafter"] == "ouroboros"
    other = start("method=pacer_ouroboros", "method.variant=spec_bench", "method.window=5")
    assert used(other)[0]["path"] == phrases  # options of Ouroboros change no drafted token


@pytest.mark.slow
def test_what_a_command_made_comes_first_and_what_is_shipped_before_what_a_run_made(
    start: Any, own_cache: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    found = load_artefact(Path(used(start("method=pacer"))[0]["path"]))
    monkeypatch.setattr(session, "SHIPPED", tmp_path / "shipped")
    shipped = found.save(tmp_path / "shipped" / "pacer.json")
    assert used(start("method=pacer", "seed=2"))[0]["path"] == str(shipped)
    own = replace(found, card={}).save(own_cache / "controllers" / "mine.json")
    try:
        assert used(start("method=pacer", "seed=3"))[0]["path"] == str(own)
    finally:
        own.unlink()


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("method=pacer",), r"scripts/train_pacer\.py"),
        (("method=sps", "method/controller=tuned"), r"scripts/train_controller\.py tuned"),
        (("method=sps", "method/controller=scalars"), r"scripts/train_controller\.py scalars"),
        (("method=sps", "method/controller=specdecpp"), r"scripts/train_controller\.py specdecpp"),
    ],
)
def test_error_names_the_command(words: tuple[str, ...], command: str, tmp_path: Path) -> None:
    results, cache = tmp_path / "results", tmp_path / "cache"
    with pytest.raises(ConfigError, match=rf"is stored for this model.*{command}.*artefact\.if_missing=build"):
        measured(tiny_config([*words, "artefact.if_missing=error"], results, cache))
    assert not (results / "runs").exists()
    assert not (cache / "controllers").exists()
