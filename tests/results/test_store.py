from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from specbench.results import files, journal
from specbench.results.store import RunStore, is_finished
from specbench.results.summary import load_choices, load_runs, load_samples, load_steps
from specbench.types import DataError, SpecbenchError
from tests.results.rows import choice, failed, sample, step

SUMMARY = {"walltime_speedup": 1.5, "method": "pld", "noisy": False}


def record(store: RunStore, sample_id: str, **values) -> None:
    store.append(sample_id, [sample(sample_id, **values)], [step(sample_id, i) for i in range(2)])


def test_a_run_from_start_to_end(tmp_path):
    run = tmp_path / "run"
    with RunStore(run) as store:
        store.write_config("model: tiny\n")
        store.write_environment({"torch": "2"})
        record(store, "a")
        store.append("b", [failed("b")])
        assert store.finished_ids() == {"a", "b"}
        assert len(store.frames().steps) == 2
        assert not is_finished(run)
        store.finalize(SUMMARY, status="finished")
    assert is_finished(run)
    names = {path.name for path in run.iterdir()} - {".lock"}
    assert names == {
        "config.yaml", "environment.json", "samples.parquet", "steps.parquet", "summary.json", "status.json",
    }  # fmt: skip
    status = json.loads((run / "status.json").read_text())
    assert {k: status[k] for k in ("status", "num_samples", "num_failed", "run_id", "noisy", "error")} == {
        "status": "finished", "num_samples": 2, "num_failed": 1, "run_id": "run", "noisy": False, "error": None,
    }  # fmt: skip
    assert status["started_at"] == 100.0
    assert load_samples(tmp_path)["sample_id"].tolist() == ["a", "b"]
    assert len(load_steps(tmp_path)) == 2


def test_choices_are_written_only_when_there_are_rows(tmp_path):
    with RunStore(tmp_path / "run") as store:
        store.append("a", [sample("a")], [], [choice("a")])
        store.finalize({}, status="finished")
    assert json.loads(load_choices(tmp_path)["values"][0]) == {"skip": [1, 2]}


def test_a_sample_is_recorded_once(tmp_path):
    with RunStore(tmp_path / "run") as store:
        record(store, "a")
        with pytest.raises(DataError, match="already recorded"):
            record(store, "a")
    with RunStore(tmp_path / "run") as store, pytest.raises(DataError, match="already recorded"):
        record(store, "a")


@pytest.mark.parametrize(
    ("rows", "text"),
    [([], "no sample row"), ([sample("b")], "other samples"), ([sample("a"), sample("a")], "share one key")],
)
def test_a_conversation_that_is_no_conversation_is_refused(tmp_path, rows, text):
    with RunStore(tmp_path / "run") as store:
        with pytest.raises(DataError, match=text):
            store.append("a", rows)
        assert store.finished_ids() == set()


def test_a_finished_run_takes_nothing_more_but_can_be_read(tmp_path):
    with RunStore(tmp_path / "run") as store:
        record(store, "a")
        store.finalize(SUMMARY, status="finished")
    with RunStore(tmp_path / "run") as store:
        assert store.finished_ids() == {"a"}
        assert store.frames().samples["num_tokens"].tolist() == [10]
        with pytest.raises(SpecbenchError, match="finished"):
            record(store, "b")
    assert is_finished(tmp_path / "run")


def test_a_failed_run_can_be_continued(tmp_path):
    run = tmp_path / "run"
    with RunStore(run) as store:
        record(store, "a")
        store.finalize({}, status="failed", error="NaN logits")
    assert json.loads((run / "status.json").read_text())["error"] == "NaN logits"
    with RunStore(run) as store:
        assert not (run / "status.json").exists()
        record(store, "b")
        store.finalize(SUMMARY, status="finished")
    assert load_samples(run)["sample_id"].tolist() == ["a", "b"]


def test_truncation_at_every_byte_of_the_last_line(tmp_path):
    run = tmp_path / "run"
    with RunStore(run) as store:
        store.append("a", [sample("a")])
        kept = (run / "journal.jsonl").stat().st_size
        store.append("b", [sample("b")])
    whole = (run / "journal.jsonl").read_bytes()
    for size in range(kept, len(whole)):
        (run / "journal.jsonl").write_bytes(whole[:size])
        with RunStore(run) as store:
            assert store.finished_ids() == {"a"}
        assert (run / "journal.jsonl").stat().st_size == kept
    with RunStore(run) as store:
        store.append("b", [sample("b")])
    assert (run / "journal.jsonl").read_bytes() == whole


def test_damage_before_the_last_line_is_named(tmp_path):
    path = tmp_path / "run" / "journal.jsonl"
    with RunStore(tmp_path / "run") as store:
        for name in "abc":
            record(store, name)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1][:20] + b"\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(DataError, match=r"journal\.jsonl, line 2"):
        RunStore(tmp_path / "run")
    path.unlink()
    RunStore(tmp_path / "run").close()  # the lock was given back


def test_a_full_disk_keeps_everything_before(tmp_path, monkeypatch):
    run = tmp_path / "run"
    with RunStore(run) as store:
        record(store, "a")
        before = (run / "journal.jsonl").read_bytes()
        real = os.pwrite

        def half(descriptor, content, offset):
            if offset > len(before):
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(descriptor, content[:30], offset)

        monkeypatch.setattr(journal.os, "pwrite", half)
        with pytest.raises(SpecbenchError, match=r"journal\.jsonl.*no space left.*kept"):
            record(store, "b")
        assert (run / "journal.jsonl").read_bytes() == before
        monkeypatch.undo()
        record(store, "b")
        assert store.finished_ids() == {"a", "b"}


def test_a_full_disk_at_the_end_leaves_an_unfinished_run(tmp_path, monkeypatch):
    run = tmp_path / "run"

    def full(_table, path, **_kwargs):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with RunStore(run) as store:
        record(store, "a")
        monkeypatch.setattr(files.pq, "write_table", full)
        with pytest.raises(SpecbenchError, match=r"samples\.parquet.*no space left"):
            store.finalize(SUMMARY, status="finished")
        monkeypatch.undo()
    assert not list(run.glob(".*.tmp"))  # what half a table took is free again
    assert not is_finished(run)
    with RunStore(run) as store:
        store.finalize(SUMMARY, status="finished")
    assert load_samples(run)["sample_id"].tolist() == ["a"]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", range(5))
def test_killed_anywhere_inside_finalize(tmp_path, monkeypatch, nth, when):
    """Each of the replaces of finalize, and the removal of the journal, is where the kill falls."""
    run, count = tmp_path / "run", iter(range(100))

    def dying(real):
        def call(*args, **kwargs):
            hit = next(count) == nth
            if hit and when == "before":
                raise Killed
            result = real(*args, **kwargs)
            if hit:
                raise Killed
            return result

        return call

    with RunStore(run) as store:
        record(store, "a")
        monkeypatch.setattr(files.os, "replace", dying(os.replace))
        monkeypatch.setattr(journal.Journal, "remove", dying(journal.Journal.remove))
        with pytest.raises(Killed):
            store.finalize(SUMMARY, status="finished")
        monkeypatch.undo()
    expected = "finished" if nth == 4 or (nth == 3 and when == "after") else "interrupted"
    assert load_runs(run)["status"].tolist() == [expected]
    with RunStore(run) as store:
        assert store.finished_ids() == {"a"}
        if not is_finished(run):
            store.finalize(SUMMARY, status="finished")
    assert load_runs(run)["walltime_speedup"].tolist() == [1.5]
    assert load_samples(run)["sample_id"].tolist() == ["a"]
    assert not (run / "journal.jsonl").exists()
    assert not list(run.glob(".*.tmp"))


def test_two_writers_are_refused(tmp_path):
    run = tmp_path / "run"
    code = f"from specbench.results.store import RunStore; RunStore({str(run)!r})"
    with RunStore(run):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode != 0
        assert "another process is writing this run" in done.stderr
    RunStore(run).close()


APPEND_FOREVER = """
import itertools, sys
from specbench.results.store import RunStore
from tests.results.rows import sample, step
with RunStore(sys.argv[1]) as store:
    done = store.finished_ids()
    for i in itertools.count():
        if f"s{i}" in done:
            continue
        store.append(f"s{i}", [sample(f"s{i}", text="x" * 3000)], [step(f"s{i}", j) for j in range(5)])
        print(f"s{i}", flush=True)
"""


def test_sigkill_in_a_loop_of_appends_loses_nothing_acknowledged(tmp_path, repo_root):
    run, acknowledged = tmp_path / "run", []
    for attempt in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", APPEND_FOREVER, str(run)], stdout=subprocess.PIPE, text=True, cwd=repo_root
        )
        acknowledged.append(process.stdout.readline().strip())
        time.sleep(0.05 * (attempt + 1))
        process.send_signal(signal.SIGKILL)
        acknowledged += process.stdout.read().split("\n")[:-1]
        process.stdout.close()
        process.wait()
    assert len(acknowledged) == len(set(acknowledged)) >= 3
    with RunStore(run) as store:
        ids = store.frames().samples["sample_id"].tolist()
        assert len(ids) == len(set(ids))
        assert set(acknowledged) <= set(ids)
        store.finalize({}, status="finished")
    assert load_samples(run)["sample_id"].tolist() == ids
