"""Sets found on held-out samples, and the command that stores them."""

from __future__ import annotations

import json
import runpy
import sys

import pytest

from specbench.methods.skip_sets import given_set
from specbench.results.files import read_json
from specbench.runner.layer_search import check, search
from specbench.runner.planning import make_task, ordered_samples
from specbench.runner.session import Session
from specbench.types import ConfigError, SpecbenchError
from tests.runner.runs import tiny_config

WORDS = ("task=cnn_dm", "sampling.max_new_tokens=40", "num_samples=2")
SMALL = {
    "swift": ("method.context_window=6", "method.max_tolerance=3", "method.bayes=false"),
    "confl": ("method.context_window=6", "method.search_interval=2", "method.max_opt_iter=4"),
    "knapspec": (
        "method.window_tokens=6",
        "method.min_gain=0",
        "method.planned_length_min=1",
        "method.cost_model=paper",
        "method.latency=[0.001,0.0,0.001]",
    ),
}


def session_of(tmp_path, cache, *words) -> Session:
    return Session(tiny_config([*WORDS, *words], tmp_path, cache))


@pytest.mark.parametrize("method", sorted(SMALL))
def test_a_search_finds_a_set_and_says_what_it_knew(method, tmp_path, cache):
    session = session_of(tmp_path, cache, f"method={method}", *SMALL[method])
    samples = ordered_samples(session.config, make_task(session.config, "train"))
    assert all("held-out" in sample.id for sample in samples)
    found = search(session, samples)
    assert found.skip
    assert found.skip <= set(range(12))
    assert found.ended == (method != "knapspec")
    card = found.card()
    assert card["num_attention_skipped"] + card["num_mlp_skipped"] == len(found.skip)
    known = {"swift": "matchness", "confl": "opt_iter", "knapspec": "predicted_tokens_per_second"}[method]
    assert card["search"][known] >= 0
    if method == "swift":
        assert found.skip == session.method.drafter.skip


def test_a_method_that_searches_nothing_is_refused(tmp_path, cache):
    for words in (("method=ar",), ("method=swift", "method.skip_set=[2]"), ("method=del",)):
        session = session_of(tmp_path, cache, *words)
        with pytest.raises(ConfigError, match=r"use swift, confl or knapspec"):
            search(session, ordered_samples(session.config, make_task(session.config)))


def test_too_little_text_gives_no_set(tmp_path, cache):
    session = session_of(tmp_path, cache, "method=swift", "sampling.max_new_tokens=8")
    with pytest.raises(SpecbenchError, match=r"take more samples .* or tokens"):
        search(session, ordered_samples(session.config, make_task(session.config)))


@pytest.mark.slow
def test_a_set_is_measured_on_other_samples(tmp_path, cache):
    session = session_of(tmp_path, cache, "method=swift")
    samples = ordered_samples(session.config, make_task(session.config))
    nothing_skipped, much = (check(session, skip, samples) for skip in ([], range(2, 10)))
    assert nothing_skipped["acceptance_rate"] == 1.0
    assert much["acceptance_rate"] < 1.0
    assert much["draft_cost"] < nothing_skipped["draft_cost"]
    assert much["mat"] < nothing_skipped["mat"]
    assert nothing_skipped["predicted_tokens_per_second"] > 0


def command(repo_root, capsys, monkeypatch, *words: str) -> tuple[int, str, str]:
    main = runpy.run_path(str(repo_root / "scripts" / "search_layers.py"))["main"]
    monkeypatch.setattr(sys, "argv", ["search_layers.py", *words])
    code = main()
    return code, *capsys.readouterr()


@pytest.mark.slow
def test_the_command_stores_a_set_that_runs_can_load(repo_root, capsys, monkeypatch, tmp_path, cache):
    words = ["model=tiny", "hardware.device=cpu", "hardware.dtype=float32", "hardware.num_threads=1", *WORDS]
    words += [*SMALL["swift"], f"paths.results_dir={tmp_path}", f"paths.cache_dir={cache}"]
    code, out, _ = command(repo_root, capsys, monkeypatch, *words, "--check", "1", "--out", str(tmp_path / "sets"))
    assert code == 0
    (file,) = (tmp_path / "sets").iterdir()
    assert out.strip().endswith(str(file))
    assert file.name == "tiny-swift-cnn_dm.json"
    card = read_json(file)
    assert given_set(str(file), num_sublayers=12, model=card["model"]) == set(card["sublayers"])
    assert (card["method"], card["task"], card["seed"]) == ("swift", "cnn_dm", 0)
    assert card["check"]["num_prompts"] == 1
    assert "paths.cache_dir=FOLDER" in card["command"]
    assert str(tmp_path) not in json.dumps(card)


def test_tasks_without_held_out_samples_are_refused(repo_root, capsys, monkeypatch):
    code, _, told = command(repo_root, capsys, monkeypatch, "model=tiny", "task=humaneval")
    assert code == 2
    assert told.startswith("error: task=humaneval data=embedded: no samples are held out from measuring")
    assert "task=gsm8k data=hub or local" in told
