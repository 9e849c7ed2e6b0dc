"""The whole command on the tiny target: it writes data, is killed, goes on, trains, and its draft decodes."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock

from specbench.config import TrainDraftConfig, compose_train_draft
from specbench.models import draft as drafts
from specbench.models.checkpoint import read_tensor, weight_files
from specbench.results.files import read_json
from specbench.training import collect, prompts
from specbench.training.corpus import batch_files, count_tokens, read_corpus
from specbench.training.distil import is_held_out
from specbench.training.draft import DraftTraining
from specbench.types import ConfigError, DataError
from tests.few_documents import STUBS, few_documents
from tests.runner.runs import measured, tiny_config

WORDS = (
    "model=tiny",
    "model.target=tiny:eos",
    "hardware.num_threads=1",
    "hardware.device=cpu",
    "corpus.batch_size=6",
    "corpus.file_answers=8",
    "corpus.turn_tokens=48",
    "corpus.max_new_tokens=16",
    "corpus.article_tokens=16",
    "corpus.max_prompt_tokens=400",
    "corpus.prompts={user:30,article:8,completion:10,summary:0,own_summary:8,gsm8k:0,mbpp:0,instruction:0}",
    "training.layers=[0,-1]",
    "training.vocab_size=200",
    "training.epochs=2",
    "training.batch_tokens=1024",
    "training.held_out_every=5",
    "training.evaluate_every=5",
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module", autouse=True)
def few_functions():
    with few_documents(prompts, functions=STUBS):
        yield


def config(cache: Path, *words: str) -> TrainDraftConfig:
    return compose_train_draft([*WORDS, f"paths.cache_dir={cache}", *words])


@pytest.fixture(scope="module")
def trained(cache) -> Path:
    """The draft of the command, killed once while the target wrote."""
    write, calls = collect.write_examples, []

    def killed(path, examples):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(path)
        write(path, examples)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collect, "write_examples", killed)
        with pytest.raises(KeyboardInterrupt):
            DraftTraining(config(cache, "name=one")).run()
    before = {path: path.stat().st_mtime_ns for path in batch_files(cache / "drafts" / "one" / "answers")}
    assert len(before) == 2
    folder = DraftTraining(config(cache, "name=one"), "the command").run()
    assert all(path.stat().st_mtime_ns == then for path, then in before.items())
    return folder


def test_a_killed_collection_ends_with_the_same_data(trained, cache):
    DraftTraining(config(cache, "name=whole", "stage=data")).run()
    ours, theirs = (batch_files(cache / "drafts" / name / "answers") for name in ("one", "whole"))
    assert [path.name for path in ours] == [path.name for path in theirs]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(ours, theirs, strict=True))


def test_what_is_stored_is_what_the_target_said(trained, cache):
    """The states give back the target's own greedy choices, and the normaliser their probabilities."""
    training = DraftTraining(config(cache, "name=one"))
    examples = read_corpus(batch_files(training.folder / "answers"))
    head = read_tensor(weight_files(training.target.folder), "lm_head.weight")
    greedy = [example for example in examples if example.greedy]
    assert 0 < len(greedy) < len(examples)
    agreed = total = 0
    for example in greedy:
        log_p = example.states.float() @ head.T - example.log_z[:, None]
        assert float((log_p.exp().sum(-1) - 1).abs().max()) < 0.02
        agreed += int((log_p.argmax(-1) == example.answer).sum())
        total += len(example.answer)
    assert agreed > 0.98 * total
    counts = count_tokens(examples)
    assert counts["user"]["answers"] == 30
    assert counts["article"]["answers"] == 8


def test_prompts_that_the_draft_never_saw_are_kept_as_they_were_asked(trained, cache):
    training = DraftTraining(config(cache, "name=one"))
    lines = (training.folder / "held_out.jsonl").read_text(encoding="utf-8").splitlines()
    turns = [json.loads(line)["prompt"] for line in lines]
    day = training.config.model.template_day
    asked = {tuple(training.chat.encode_chat([{"role": "user", "content": turn}], date=day)) for turn in turns}
    examples = read_corpus(batch_files(training.folder / "answers"))
    every = training.config.training.held_out_every
    assert asked == {tuple(e.prompt.tolist()) for e in examples if is_held_out(e.prompt.tolist(), every)}
    assert 0 < len(asked) < len(examples)


def test_commands_side_by_side_share_the_work(trained, cache):
    """One leaves the file alone that another is at, makes all others, and waits for it."""
    folder = cache / "drafts" / "shared"
    training = DraftTraining(config(cache, "name=shared", "stage=data"))
    mine = threading.Thread(target=training.run)
    (folder / "turns").mkdir(parents=True)
    with FileLock(folder / "turns" / "00000.lock"):
        mine.start()
        deadline = time.monotonic() + 60
        while not (folder / "turns" / "00001.json").is_file():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert not (folder / "turns" / "00000.json").exists()
    mine.join()
    ours, whole = (batch_files(cache / "drafts" / name / "answers") for name in ("shared", "one"))
    assert [path.read_bytes() for path in ours] == [path.read_bytes() for path in whole]


def test_two_commands_may_start_at_once(cache, monkeypatch):
    small = "corpus.prompts={user:2,article:0,completion:0}"
    commands = [DraftTraining(config(cache, "name=twins", "stage=data", small)) for _ in range(2)]
    both, replace = threading.Barrier(2), os.replace

    def together(source, target):
        if target.suffix == ".json" and not target.is_file():
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(timeout=1)
        replace(source, target)

    monkeypatch.setattr(os, "replace", together)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(DraftTraining.run, commands))
    assert (commands[0].folder / "corpus.json").is_file()


def test_the_card_says_where_the_draft_comes_from(trained):
    card = read_json(trained / "card.json")
    assert card["target"] == "tiny:eos"
    assert card["command"] == "the command"
    assert card["vocab_size"] == 200
    assert card["settings"]["layers"] == [0, -1]
    assert card["prompts"]["prompts_seen"]["user"] == 30
    assert card["prompts"]["sources_skipped"] == []
    assert set(card["data"]) <= {"user", "article", "completion", "own_summary"}
    rates = [entry["acceptance_rate"]["all"] for entry in card["curve"]]
    assert card["scores"]["acceptance_rate"]["all"] == max(rates)
    json.dumps(card, allow_nan=False)


def test_sources_that_are_not_there_are_named(cache):
    training = DraftTraining(
        config(
            cache, "name=skips", "stage=data", "corpus.prompts={user:2,article:0,completion:0,gsm8k:5,instruction:5}"
        )
    )
    training.run()
    assert read_json(training.folder / "corpus.json")["sources_skipped"] == ["gsm8k", "instruction"]


@pytest.mark.parametrize("method", ["sps", "hf_assisted"])
def test_the_draft_decodes(trained, cache, tmp_path, monkeypatch, method):
    monkeypatch.setenv("SPECBENCH_LOCK_DIR", str(tmp_path / "locks"))
    words = [f"method={method}", "model.target=tiny:eos", f"model.draft={trained}", "measure.exclusive=false"]
    run = measured(tiny_config(words, tmp_path / "results", cache))
    assert run.error is None
    assert bool(run.rows()["exact_match"].all())
    if method == "sps":
        assert run.steps["num_accepted"].sum() > 0


def test_a_draft_of_another_target_is_one_clear_error(trained, cache, tmp_path):
    words = ["method=sps", "model.target=tiny:plain", f"model.draft={trained}"]
    with pytest.raises(drafts.ModelError, match=r"was trained for tiny:eos .* not for tiny:plain"):
        measured(tiny_config(words, tmp_path / "results", cache))


def test_data_made_another_way_is_not_mixed_in(trained, cache):
    with pytest.raises(ConfigError, match=r"made with another temperature"):
        DraftTraining(config(cache, "name=one", "corpus.temperature=0.5")).run()
    with pytest.raises(ConfigError, match="another target's"):
        DraftTraining(config(cache, "name=one", "stage=train", "model.target=tiny:plain")).run()


def test_training_needs_data(cache):
    with pytest.raises(DataError, match="stage=data"):
        DraftTraining(config(cache, "name=nothing", "stage=train")).run()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("training.epoch=2", r"training.epoch: no such key. did you mean 'training.epochs'"),
        ("training.layers=[]", r"training.layers=\[\]: name at least one layer"),
        ("training.divergence=js", r"training.divergence=js: not a legal value.*kl, tv"),
        ("+corpus.prompts.poems=3", r"corpus.prompts=poems: not a legal value.*gsm8k"),
        ("stage=everything", r"stage=everything: not a legal value"),
        ("training.vocab_size=0", r"training.vocab_size=0: must be 2 or more, or null"),
    ],
)
def test_bad_input_is_answered_with_what_is_legal(cache, word, message):
    with pytest.raises(ConfigError, match=message):
        config(cache, word)
