"""A run that is continued elsewhere says so, and one whose models are others is not continued."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from specbench import runner
from specbench.loggers.base import Loggers
from specbench.loggers.running import Running
from specbench.results.files import read_json
from specbench.runner.resuming import EARLIER
from specbench.types import ConfigError
from tests.runner.runs import edited_json, local_questions, with_method


@pytest.fixture
def begun(measure, tmp_path):
    """A run of which one sample failed, and how to go on with it."""
    words = local_questions(tmp_path)
    first = measure(*words, change=with_method("OutOfMemory"))
    return first, lambda: measure(*words, "measure.retry_failed=true", change=with_method("OutOfMemory"))


class Listener:
    """A logger that keeps what one would have shown after each conversation."""

    def __init__(self) -> None:
        self.running, self.counts = Running(), []
        self.start = self.finish = self.close = lambda *_: None
        self.resume: Callable = self.running.add_frame

    def sample(self, samples, steps) -> None:
        self.running.add(samples)
        self.counts.append(self.running.num_samples)


def test_live_rates_of_a_continued_run_are_of_the_whole_run(begun, monkeypatch):
    _, go_on = begun
    heard = Listener()
    monkeypatch.setattr(runner, "build_logger", lambda config: Loggers(heard))
    summary = go_on().summary
    assert heard.counts == [summary["num_samples"]] == [4]
    assert heard.running.metrics()["tokens_per_second"] == pytest.approx(summary["tokens_per_second"])


def test_where_the_first_samples_were_measured_is_kept(begun, caplog):
    first, go_on = begun
    file = first.run_dir / "environment.json"
    edited_json(file, num_threads=7)
    with caplog.at_level(logging.WARNING):
        go_on()
    assert "first samples were measured with another num_threads" in caplog.text
    now = read_json(file)
    assert (now["num_threads"], [then["num_threads"] for then in now[EARLIER]]) == (1, [7])
    assert EARLIER not in now[EARLIER][0]


def test_the_same_place_is_no_news(begun):
    first, go_on = begun
    go_on()
    assert EARLIER not in read_json(first.run_dir / "environment.json")


@pytest.mark.parametrize("part", ["target", "draft", "artefacts"])
def test_other_models_are_refused_and_nothing_is_lost(begun, part):
    first, go_on = begun
    rows = len(first.samples)
    edited_json(first.run_dir / "environment.json", **{part: [{"kind": "pacer", "path": "/x", "sha256": "y"}]})
    with pytest.raises(ConfigError, match=f"its first samples were made with another {part}"):
        go_on()
    assert len(first.samples) == rows
    assert (first.run_dir / "journal.jsonl").read_text(encoding="utf-8").count("\n") >= 3
