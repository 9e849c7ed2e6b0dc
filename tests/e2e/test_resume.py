"""Killing and interrupting: no finished sample is lost, none is decoded twice, the numbers are those of one run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specbench.results.summary import load_runs, load_samples, load_steps

# Not exclusive: on a busy machine a timed pair is decoded up to three times.
WORDS = ("method=sps", "task=mt_bench", "num_samples=5", "measure.warmup=1", "measure.exclusive=false")
SEMANTIC = ["sample_id", "turn", "arm", "repeat", "seed", "prompt_sha256", "num_tokens", "finish_reason", "text"]


class Killer:
    """Watches the journal of the only run below `results` and checks it after every kill."""

    def __init__(self, results: Path, seed: int) -> None:
        self.results, self.random = results, random.Random(seed)
        self.kept = b""

    def journal(self) -> bytes:
        """Whole lines of the journal."""
        for file in self.results.glob("runs/*/journal.jsonl"):
            content = file.read_bytes()
            return content[: content.rfind(b"\n") + 1]
        return b""

    def wait_for_progress(self, running) -> None:
        """Until one more conversation is finished, or the process ended."""
        lines = self.kept.count(b"\n")
        while running() and self.journal().count(b"\n") <= lines:
            time.sleep(0.005)

    def check(self) -> None:
        """What was finished before is still there, byte for byte: ids, times and tokens."""
        now = self.journal()
        assert now.startswith(self.kept)
        self.kept = now

    def finished(self) -> dict[str, list[float]]:
        """Sample id -> when its rows were decoded."""
        records = [json.loads(line) for line in self.kept.splitlines()]
        ids = [record["sample_id"] for record in records]
        assert len(set(ids)) == len(ids)
        return {record["sample_id"]: [row["started_at"] for row in record["samples"]] for record in records}


def check_equal_to_one_run(killer: Killer, whole: Path) -> None:
    """The resumed tables hold each conversation once, keep what was measured, and give an undisturbed run's tokens."""
    resumed, undisturbed = load_samples(killer.results), load_samples(whole)
    assert len(resumed["sample_id"].unique()) == 5
    keys = ["sample_id", "turn", "arm", "attempt", "repeat"]
    assert not resumed.duplicated(keys).any()
    for sample_id, times in killer.finished().items():
        assert list(resumed[resumed["sample_id"] == sample_id]["started_at"]) == times
    used = [frame[frame["used"]].sort_values(keys).reset_index(drop=True) for frame in (resumed, undisturbed)]
    assert used[0][SEMANTIC].equals(used[1][SEMANTIC])
    assert used[0]["tokens"].map(tuple).equals(used[1]["tokens"].map(tuple))
    steps = load_steps(killer.results)
    counted = steps.groupby(keys).size().reset_index(name="n").merge(resumed, on=keys)
    assert (counted["n"] == counted["num_steps"]).all()
    (status,) = load_runs(killer.results)["status"]
    assert status == "finished"


def test_sigkill_at_any_moment_loses_nothing_and_repeats_nothing(start, results, tmp_path):
    killer = Killer(results, seed=0)
    command = start(*WORDS)
    time.sleep(0.5)  # while models are loaded: no folder yet, or an empty one
    command.kill()
    killer.check()
    for _ in range(2):
        command = start(*WORDS)
        killer.wait_for_progress(lambda command=command: command.running)
        time.sleep(killer.random.uniform(0, 0.4))
        command.kill()
        killer.check()
    assert killer.finished()
    (status,) = load_runs(results)["status"]
    assert status == "interrupted"
    done = start(*WORDS).wait()
    assert done.code == 0, done.stderr
    assert f"continuing after {len(killer.finished())} of 5 samples" in done.stderr
    whole = tmp_path / "whole"
    assert start(*WORDS, f"paths.results_dir={whole}").wait().code == 0
    check_equal_to_one_run(killer, whole)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_random_kills_of_the_command_until_it_ends(start, results, tmp_path, tiny_words, environment, repo_root, seed):
    killer = Killer(results, seed)
    command = [sys.executable, str(repo_root / "run.py"), *tiny_words, *WORDS]
    code = None
    while code != 0:
        process = subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.PIPE, cwd=tmp_path)
        killer.wait_for_progress(lambda process=process: process.poll() is None)
        time.sleep(killer.random.expovariate(1.0))
        process.kill()
        code = process.wait()
        assert code in (0, -signal.SIGKILL), process.stderr.read()
        if (next(results.glob("runs/*")) / "status.json").exists():
            break
        killer.check()
    assert start(*WORDS).wait().code == 0  # if only the last kill fell after status.json
    whole = tmp_path / "whole"
    assert start(*WORDS, f"paths.results_dir={whole}").wait().code == 0
    check_equal_to_one_run(killer, whole)


def test_ctrl_c_keeps_what_was_measured_and_says_how_to_go_on(start, results):
    killer = Killer(results, seed=0)
    command = start(*WORDS)
    killer.wait_for_progress(lambda: command.running)
    os.kill(command.pid, signal.SIGINT)
    done = command.wait()
    assert done.code == 130
    assert done.stderr.splitlines()[-1] == (
        "interrupted: everything measured so far is kept; the same command continues it"
    )
    assert "Traceback" not in done.stderr
    killer.check()
    assert killer.finished()
    (job,) = results.glob("hydra/runs/*/*/job.json")
    assert json.loads(job.read_text())["status"] == "interrupted"
