"""The command from outside: what goes where, sweeps, and what is made of the files afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from scripts import report, specbench_files
from specbench.config import compose, run_id
from specbench.models.tiny import prepare_tiny
from specbench.results.specbench_files import read_answers
from specbench.results.store import RunStore
from specbench.results.summary import load_runs, load_samples
from tests.loggers import wandb_file

SWEEP = ("method=ar,pld,sps", "task=gsm8k", "sampling.max_new_tokens=24", "num_samples=1")


def cells(text):
    """What a table says, however it is drawn."""
    return [line.replace("│", " ").replace("┃", " ").split() for line in text.splitlines() if "tiny " in line]


def test_one_run_prints_its_table_to_stdout_and_its_log_to_stderr(run, results):
    done = run("method=sps", "hardware.num_threads=null")
    assert done.code == 0, done.stderr
    header, row, note = done.stdout.splitlines()
    assert done.stdout.endswith("\n")
    assert header.startswith("model  method  controller  task")
    assert row.startswith("tiny   sps     fixed       gsm8k_mini  float32  2 ")
    assert note.startswith("tiny-sps-gsm8k-")
    assert "predicted" in note
    assert "INFO: decoding with " in done.stderr  # the measured thread count
    legal = ("INFO: ", "WARNING: the latency curve did not settle")  # the second on a busy machine only
    assert all(line.startswith(legal) for line in done.stderr.splitlines()), done.stderr
    assert (load_samples(results)[["load_before", "load_after"]] >= 0).all(axis=None)
    again = run("method=sps", "hardware.num_threads=null")
    assert again.stdout == done.stdout
    assert "is finished and not repeated" in again.stderr


def held(folder_words):
    """The lock of the run folder that these words lead to, as another process would hold it."""
    config = compose(folder_words)
    return RunStore(f"{config.paths.results_dir}/runs/{run_id(config)}")


@pytest.mark.slow
def test_a_sweep_with_a_job_that_cannot_run_finishes_the_others(tmp_path, tiny_words, environment, repo_root, results):
    command = [sys.executable, str(repo_root / "run.py"), "-m", *tiny_words, *SWEEP]
    env = {**os.environ, **environment}
    with held([*tiny_words, "method=sps", "task=gsm8k", *SWEEP[2:]]):
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stdout.splitlines()
    table = [line.split() for line in lines[lines.index("") + 2 : -2]]
    assert [line[0] for line in table] == list("012")
    (failed,) = [line for line in table if "done" not in line]
    assert {"method=sps", "user", "error"} <= set(failed)
    assert lines[-2].startswith(f"job {failed[0]}: ")
    assert lines[-2].endswith("another process is writing this run; wait for it or stop it")
    assert lines[-1] == "2 of 3 jobs done"
    statuses = load_runs(results).set_index("method")["status"]
    assert statuses[statuses == "finished"].index.tolist() == ["ar", "pld"]
    assert not (tmp_path / "outputs").exists()


def test_the_report_script_prints_the_same_table(run, results, capsys):
    done = run("method=sps")
    assert done.code == 0, done.stderr
    assert report.main([str(results)]) == 0
    printed = capsys.readouterr().out
    assert cells(printed) == cells(done.stdout) != []
    assert done.stdout.splitlines()[-1] in printed.splitlines()


def test_an_exported_run_scores_what_the_run_itself_says(run, results, cache, tmp_path, capsys):
    assert run("method=sps", "task=mt_bench").code == 0
    (run_dir,) = results.glob("runs/*")
    answers = tmp_path / "answers"
    specbench_files.export(SimpleNamespace(run_dir=run_dir, out_dir=answers, swift=False))
    own, baseline = answers / f"{run_dir.name}.jsonl", answers / f"{run_dir.name}-baseline.jsonl"
    assert capsys.readouterr().out.splitlines() == [f"{own}: 2 answers", f"{baseline}: 2 answers"]
    assert [len(answer.new_tokens) for answer in read_answers(own)] == [2, 2]
    tokenizer = prepare_tiny(cache)[0]
    specbench_files.score(SimpleNamespace(method=own, baseline=baseline, tokenizer=tokenizer, unbiased=False))
    summary = json.loads((run_dir / "summary.json").read_text())
    (overall,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("overall")]
    figures = dict(zip(overall.split()[1::2], overall.split()[2::2], strict=True))
    assert float(figures["speedup"]) == pytest.approx(summary["speedup_specbench"], rel=1e-3)


def test_the_demo_experiment_on_the_tiny_pair_leaves_wandb_files_of_every_run(run, results):
    done = run("experiment=demo", "method=sps", "task=gsm8k,mt_bench", "num_samples=2", "logger=wandb")
    assert done.code == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "2 of 2 jobs done"
    files = {wandb_file.run(file).run_id: file for file in results.glob("wandb/offline-run-*/run-*.wandb")}
    runs = load_runs(results).set_index("run_id")
    assert set(files) == set(runs.index)
    for name, file in files.items():
        run_of = wandb_file.run(file)
        assert (run_of.run_group, run_of.job_type, run_of.project) == ("demo", "sps", "specbench")
        summary = wandb_file.summary(file)
        assert summary["acceptance_rate"] == runs["acceptance_rate"][name]
        assert summary["status"] == "finished"
        assert wandb_file.config(file)["hardware.dtype"] == "float32"
        logged = {key for row in wandb_file.history(file) for key in row}
        assert {"steps/num_accepted.values", "steps/num_draft_tokens.values", "steps/seconds.values"} <= logged
        (table,) = (file.parent / "files" / "media" / "table").glob("samples_*.table.json")
        rows = json.loads(table.read_text())["data"]
        assert len(rows) >= 2 * runs["num_turns"][name]


@pytest.mark.slow
def test_two_jobs_at_once_through_joblib(tmp_path, tiny_words, environment, repo_root, results):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="the joblib extra is not installed")
    words = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "method=ar,sps"]
    command = [sys.executable, str(repo_root / "run.py"), "-m", *tiny_words, *words]
    env = {**os.environ, **environment}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "2 of 2 jobs done"
    runs = load_runs(results)
    assert list(runs["status"]) == ["finished"] * 2
    assert (runs["exact_match_rate"] == 1.0).all()
