"""Calibration text: whole sequences, no sample of a benchmark, the same for a seed."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specbench.config import DataConfig
from specbench.conversion import calibration
from specbench.conversion.calibration import check_disjoint, read_calibration
from specbench.models.chat import Chat, load_chat
from specbench.models.tiny import prepare_tiny
from specbench.tasks import build_task, cnn_dm
from specbench.types import ConfigError, DataError
from tests.conversion.models import config
from tests.few_documents import PASSAGES, few_documents

DATE = datetime.date(2024, 7, 26)
EMBEDDED = DataConfig(source="embedded")


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Chat:
    found = load_chat(prepare_tiny(tmp_path_factory.mktemp("cache"))[0], "tiny")
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def few_passages() -> Iterator[list[str]]:
    texts = [f"{text} " * 4 for text in PASSAGES]
    with few_documents(calibration, texts):
        yield texts


def read(chat: Chat, **changes: Any) -> calibration.Calibration:
    few = {"num_sequences": 6, "held_out": 2, "sequence_length": 100}
    settings = config(calibration={**few, **changes}).calibration
    return read_calibration(settings, chat, data=EMBEDDED, date=DATE)


def test_sequences_are_full_and_begin_as_prompts_do(chat: Chat) -> None:
    found = read(chat)
    assert found.training.shape == (6, 100)
    assert found.held_out.shape == (2, 100)
    begins = [chat.decode(row[:20].tolist()) for row in found.every]
    assert all(text.startswith(("Passage", cnn_dm.INSTRUCTION[:8])) for text in begins), begins
    assert sum(row[0] == chat.tokenizer.bos_token_id for row in found.every.tolist()) >= 2, (
        "conversations open with BOS"
    )


def test_a_seed_decides_the_text(chat: Chat) -> None:
    first, again, other = (read(chat, seed=seed) for seed in (1, 1, 2))
    assert first.training.equal(again.training)
    assert not first.training.equal(other.training)
    assert first.card["sha256"] == again.card["sha256"] != other.card["sha256"]


def test_no_sequence_is_both_learnt_from_and_judged_by(chat: Chat) -> None:
    found = read(chat)
    learnt = {tuple(row) for row in found.training.tolist()}
    assert not any(tuple(row) in learnt for row in found.held_out.tolist())


def test_what_the_data_source_lacks_is_left_out_and_said(chat: Chat, caplog: pytest.LogCaptureFixture) -> None:
    found = read(chat)
    assert found.card["not_available"] == ["gsm8k", "mbpp"]
    assert set(found.card["texts"]) == {"cnn_dm", "documentation"}
    assert "calibration text without gsm8k, mbpp, which data=embedded does not have" in caplog.text


def test_train_splits_are_read_where_they_are(chat: Chat, tmp_path: Path) -> None:
    folder = tmp_path / "gsm8k"
    folder.mkdir()
    lines = [
        f'{{"question": "A farmer of the year {i} counts {i} sheep?", "answer": "They are #### {i}"}}'
        for i in range(60)
    ]
    (folder / "train.jsonl").write_text("\n".join(lines))
    settings = config(calibration={"num_sequences": 4, "held_out": 1, "sequence_length": 80, "sources": ["gsm8k"]})
    data = DataConfig(source="local", dir=str(tmp_path))
    found = read_calibration(settings.calibration, chat, data=data, date=DATE)
    text = chat.decode(found.training[0].tolist())
    assert "sheep" in text
    assert found.card["texts"] == {"gsm8k": 60}


def test_texts_that_a_benchmark_holds_are_left_out(chat: Chat, few_passages: list[str]) -> None:
    task = build_task("gsm8k", source="embedded")
    few_passages[:] = [sample.turns[0] for sample in task.samples()] + few_passages
    found = read(chat, sources=["documentation"], num_sequences=4)
    assert found.card["texts"] == {"documentation": 30}


def test_too_little_text_says_how_much_there_is(chat: Chat) -> None:
    with pytest.raises(DataError, match=r"30 texts give \d+ of 502 sequences of 100 tokens; name more"):
        read(chat, sources=["documentation"], num_sequences=500)
    with pytest.raises(DataError, match="none of gsm8k is available"):
        read(chat, sources=["gsm8k"])


def test_a_task_is_not_measured_on_what_was_learnt_from() -> None:
    settings = config(calibration={"sources": ["longdoc", "gsm8k"]}).calibration
    check_disjoint(settings, "gsm8k")
    with pytest.raises(ConfigError, match="longdoc has no train split"):
        check_disjoint(settings, "longdoc")
