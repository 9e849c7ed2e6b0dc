"""What the user may write as a model, and the one clear error for everything else."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub import errors

from specbench.models import hub
from specbench.models.hub import check_hub
from specbench.models.prepare import prepare_embedded
from specbench.models.source import resolve
from specbench.types import ModelError


def answer(status: int) -> httpx.Response:
    return httpx.Response(status, request=httpx.Request("GET", "https://huggingface.co/owner/name"))


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (errors.GatedRepoError("gated", response=answer(403)), ["owner/name is gated", "HF_TOKEN", "model.target="]),
        (errors.RepositoryNotFoundError("none", response=answer(404)), ["not found", "HF_TOKEN", "model.target="]),
        (errors.RevisionNotFoundError("none", response=answer(404)), ["no revision 'main2'"]),
        (
            httpx.ConnectError("Name or service not known"),
            ["owner/name", "Name or service", "prefetch", "model.target="],
        ),
        (errors.LocalEntryNotFoundError("offline"), ["owner/name", "offline", "model.target="]),
    ],
    ids=["gated", "unknown", "revision", "network", "offline"],
)
def test_hub_failures_are_one_clear_error(monkeypatch: pytest.MonkeyPatch, failure: Any, words: list[str]) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise failure

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ModelError) as caught:
        resolve("owner/name", cache_dir=Path("unused"), revision="main2")
    assert all(word in str(caught.value) for word in words)


NAMED = {"model.target": ("owner/target", None), "model.draft": ("owner/draft", None)}


@pytest.fixture
def empty_hub_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was ever fetched, and nobody was asked."""

    def absent(*_: Any, **options: Any) -> str:
        assert options["local_files_only"]
        raise errors.LocalEntryNotFoundError("absent")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", absent)
    hub._no_answer.cache_clear()


def refuse(*_: Any, **__: Any) -> None:
    raise httpx.ConnectError("Name or service not known")


def test_without_an_answer_of_the_hub_all_models_that_are_not_here_are_named_at_once(
    empty_hub_cache: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", refuse)
    with pytest.raises(ModelError) as caught:
        check_hub(NAMED, needed=["model.target"])
    told = str(caught.value)
    for words in ("owner/target and owner/draft", "Name or service", "prefetch.py --model owner/target --model"):
        assert words in told
    check_hub({**NAMED, "model.target": ("tiny:plain", None)}, needed=["model.target"])  # nothing is needed
    with pytest.raises(ModelError, match="cannot fetch owner/draft from"):
        check_hub({**NAMED, "model.target": ("tiny:plain", None)}, needed=["model.target", "model.draft"])


def test_a_hub_that_never_answers_is_not_waited_for(empty_hub_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_SECONDS", 0.1)
    monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", lambda *_, **__: time.sleep(5))
    with pytest.raises(ModelError, match=r"no answer within 0\.1 s"):
        check_hub(NAMED, needed=["model.target"])


@pytest.mark.parametrize("failure", [None, errors.RepositoryNotFoundError("none", response=answer(404))])
def test_a_hub_that_answers_is_left_to_loading(
    empty_hub_cache: None, monkeypatch: pytest.MonkeyPatch, failure: Exception | None
) -> None:
    def say(*_: Any, **__: Any) -> None:
        if failure is not None:
            raise failure

    monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", say)
    check_hub(NAMED, needed=list(NAMED))


def test_hub_revision_is_the_resolved_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def fetch(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(tmp_path / "snapshots" / "0123abcd")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    found = resolve("owner/name", cache_dir=tmp_path)
    assert (found.name, found.revision) == ("owner/name", "0123abcd")
    assert asked["revision"] is None
    assert "*.safetensors" in asked["allow_patterns"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("embedded:other", "there is: embedded:smollm2"),
        ("./no/such/folder", "no folder here"),
        ("/no/such/folder", "no folder here"),
        ("none.gguf", "does not exist"),
    ],
)
def test_bad_sources_are_refused(tmp_path: Path, source: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        resolve(source, cache_dir=tmp_path)


def test_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        resolve(str(tmp_path), cache_dir=tmp_path)


def test_damaged_embedded_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = tmp_path / "model.gguf"
    damaged.write_bytes(b"GGUF")
    monkeypatch.setattr("specbench.models.prepare.embedded_gguf", lambda: damaged)
    with pytest.raises(ModelError, match="is damaged: sha256"):
        prepare_embedded(tmp_path)
