"""Bad files and a missing network: one clear error each."""

from __future__ import annotations

import gzip
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from specbench.tasks import build_task
from specbench.types import DataError

GOOD = json.dumps({"question": "How many?", "answer": "#### 1"})
QUESTION = {"question_id": 241, "category": "summarization", "turns": ["Summarize: A text."], "reference": ["Text."]}


def gsm8k_with(folder: Path, content: bytes) -> None:
    (folder / "gsm8k").mkdir()
    (folder / "gsm8k" / "test.jsonl").write_bytes(content)
    build_task("gsm8k", source="local", data_dir=folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f"{GOOD}\n{{'no json\n".encode(), r"test\.jsonl, line 2: not valid JSON"),
        (f"{GOOD}\n\n{GOOD[:30]}".encode(), r"test\.jsonl, line 3: not valid JSON"),
        (f"{GOOD}\n".encode() + b'{"question": "\xff"}\n', r"test\.jsonl, line 2: not valid JSON"),
        (b'{"question": "q"}\n', r"test\.jsonl, line 1: key 'answer' is missing"),
        (b'{"question": 3, "answer": "a"}\n', r"line 1: 'question' must be a text, found int"),
        (b"[1, 2]\n", r"line 1: expected a JSON object, found list"),
        (b"", r"test\.jsonl: the file is empty"),
        (b"\n\n", r"test\.jsonl: the file is empty"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        gsm8k_with(tmp_path, content)


def test_a_missing_file_names_the_path_and_the_key(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gsm8k/test\.jsonl: data\.dir="):
        build_task("gsm8k", source="local", data_dir=tmp_path)
    with pytest.raises(DataError, match=r"data=local needs data\.dir"):
        build_task("gsm8k", source="local")


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"not gzip" + data])
def test_a_damaged_gzip_file_is_named(tmp_path: Path, damage: Any) -> None:
    (tmp_path / "humaneval").mkdir()
    rows = "".join(json.dumps({"task_id": f"HumanEval/{i}", "prompt": str(i) * 50}) + "\n" for i in range(500))
    (tmp_path / "humaneval" / "HumanEval.jsonl.gz").write_bytes(damage(gzip.compress(rows.encode())))
    with pytest.raises(DataError, match=r"HumanEval\.jsonl\.gz: truncated or damaged gzip data after line \d+"):
        build_task("humaneval", source="local", data_dir=tmp_path)


@pytest.mark.parametrize("task", ["mt_bench", "spec_bench", "cnn_dm"])
def test_a_question_file_without_what_the_task_needs(tmp_path: Path, task: str) -> None:
    (tmp_path / "spec_bench").mkdir()
    question = {**QUESTION, "category": "weather"}
    (tmp_path / "spec_bench" / "question.jsonl").write_text(json.dumps(question) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"question\.jsonl.*categor"):
        build_task(task, source="local", data_dir=tmp_path)


HUB = {
    "gsm8k": ("openai/gsm8k", "main", "test", {"question": "q", "answer": "#### 3"}),
    "humaneval": (
        "openai/openai_humaneval",
        None,
        "test",
        {"task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f", "canonical_solution": "", "test": ""},
    ),
    "mbpp": (
        "google-research-datasets/mbpp",
        "full",
        "test",
        {"task_id": 11, "text": "t", "code": "def f(): pass", "test_list": ["assert f()"], "test_setup_code": ""},
    ),
    "cnn_dm": ("abisee/cnn_dailymail", "3.0.0", "test", {"id": "a1", "article": "text", "highlights": "short"}),
    "mt_bench": (
        "HuggingFaceH4/mt_bench_prompts",
        None,
        "train",
        {"prompt_id": 5, "category": "math", "prompt": ["a", "b"], "reference": []},
    ),
}


@pytest.mark.parametrize("task", HUB)
def test_hub_rows_become_samples(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, task: str) -> None:
    dataset, config, split, row = HUB[task]
    calls = []

    def load_dataset(path: str, name: str | None, **options: Any) -> list[dict[str, Any]]:
        calls.append((path, name, options))
        return [row]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    built = build_task(task, source="hub", cache_dir=tmp_path)
    assert calls == [(dataset, config, {"split": split, "cache_dir": str(tmp_path)})]
    assert built.name == task
    assert len(built.samples()) == 1


def test_mt_bench_from_the_hub_has_the_numbers_of_fastchat(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [HUB["mt_bench"][3]] * 2
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=lambda *a, **k: rows))
    samples = build_task("mt_bench", source="hub").samples()
    assert [sample.metadata["question_id"] for sample in samples] == [81, 82]
    assert samples[0].turns == ("a", "b")
    assert samples[0].reference is None


@pytest.mark.parametrize("error", [ConnectionError("no route\nto host"), FileNotFoundError("not cached"), OSError()])
def test_no_network_is_one_error_that_offers_the_other_sources(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def load_dataset(*args: Any, **options: Any) -> None:
        raise error

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(DataError) as caught:
        build_task("gsm8k", source="hub")
    text = str(caught.value)
    assert all(part in text for part in ("openai/gsm8k", "data=local data.dir=", "data=embedded"))
    assert "\n" not in text
