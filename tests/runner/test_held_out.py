"""What controllers learn from: kinds in turn, each prompt once, and nothing that the draft was trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.config import RunConfig
from specbench.models.checkpoint import load_model
from specbench.models.draft import save_draft
from specbench.runner.held_out import mixed_prompts
from specbench.runner.session import Session
from specbench.tasks import build_task
from specbench.training import prompts
from specbench.training.collect import Writer
from specbench.training.distil import is_held_out, start_draft
from tests.few_documents import PASSAGES, STUBS, few_documents
from tests.runner.runs import tiny_config

TARGET = "model.target=tiny:eos"  # ends what it writes
SPS = ("method=sps", "method/controller=fixed", TARGET)
EVERY = 3


@pytest.fixture(scope="module", autouse=True)
def few_texts() -> Iterator[None]:
    with few_documents(prompts, functions=STUBS):
        yield


@pytest.fixture(scope="module")
def started(tmp_path_factory: Any, cache: Path) -> Any:
    results = tmp_path_factory.mktemp("results")

    def start(*words: str) -> tuple[RunConfig, Session]:
        config = tiny_config((*SPS, *words), results, cache)
        return config, Session(config)

    return start


def kind(session: Session, ids: Sequence[int]) -> str:
    turn = session.chat.only_turn(ids, date=session.date)
    known = {"summary": PASSAGES, "completion": STUBS}
    return next((name for name, texts in known.items() if any(text in turn for text in texts)), "user")


def test_kinds_take_turns_and_the_same_seed_gives_the_same(started: Any) -> None:
    config, session = started()
    found = mixed_prompts(config, session, 9)
    assert [kind(session, ids) for ids in found] == 3 * ["user", "summary", "completion"]
    assert len({tuple(ids) for ids in found}) == 9
    assert mixed_prompts(config, session, 9) == found
    assert mixed_prompts(*started("seed=1"), 9) != found


def test_where_a_kind_has_no_more_the_others_fill_up(started: Any) -> None:
    config, session = started()
    counts = Counter(kind(session, ids) for ids in mixed_prompts(config, session, 80))
    assert counts == {"user": 80 - len(PASSAGES) - len(STUBS), "summary": len(PASSAGES), "completion": len(STUBS)}


def test_a_target_whose_turns_never_end_is_asked_once(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config, session = started()
    asked: list[int] = []
    monkeypatch.setattr(Writer, "turns", lambda self, count, **how: asked.append(count) or [])
    assert {kind(session, ids) for ids in mixed_prompts(config, session, 9)} == {"summary", "completion"}
    assert asked == [9]


def test_a_prompt_of_a_benchmark_is_left_out(started: Any) -> None:
    config, session = started()
    question = build_task("mt_bench", source="embedded").samples()[0].turns[0]
    with few_documents(prompts, [question, PASSAGES[0]], functions=STUBS):
        found = [session.chat.only_turn(ids, date=session.date) for ids in mixed_prompts(config, session, 12)]
    assert any(PASSAGES[0] in text for text in found)
    assert not any(question in text for text in found)


def test_what_the_draft_was_trained_on_is_left_out(started: Any, cache: Path, tmp_path: Path) -> None:
    """Only what others wrote before: turns that the target writes now are new."""
    target = load_model("tiny:eos", dtype=torch.float32, device="cpu", cache_dir=cache)
    card = {"target": target.name, "target_revision": target.revision, "settings": {"held_out_every": EVERY}}
    save_draft(tmp_path, start_draft(target.decoder, [0], None), target.folder, head_ids=None, card=card)
    given = [ids for ids in mixed_prompts(*started(), 80) if kind(started()[1], ids) != "user"]
    held_out = [ids for ids in given if is_held_out(ids, EVERY)]
    assert 0 < len(held_out) < len(given)
    config, session = started(f"model.draft={tmp_path}")
    found = [ids for ids in mixed_prompts(config, session, 80) if kind(session, ids) != "user"]
    assert sorted(found) == sorted(held_out)
