"""run.py from outside: exit codes, what is printed, and that nothing heavy is imported."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

FAKE = Path(__file__).parent / "fake_command.py"


@pytest.fixture
def start(tmp_path, repo_root):
    """Start a script with arguments in an empty folder; torch, transformers and wandb fail when imported."""
    traps = tmp_path / "traps"
    for name in ("torch", "transformers", "wandb", "datasets"):
        (traps / name).mkdir(parents=True)
        (traps / name / "__init__.py").write_text(f"raise RuntimeError('{name} was imported')")

    def run(script: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {key: value for key, value in os.environ.items() if key != "HYDRA_FULL_ERROR"}
        env |= {"PYTHONPATH": f"{traps}{os.pathsep}{repo_root}", **environment}
        command = [sys.executable, str(script), *words]
        return subprocess.run(command, check=False, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)

    return run


def test_help_is_quick_and_lists_groups_with_their_choices(start, repo_root):
    began = time.perf_counter()
    done = start(repo_root / "run.py", "--help")
    seconds = time.perf_counter() - began
    assert done.returncode == 0
    controllers = "method/controller  adaedl block_oracle confidence"
    for words in (controllers, "pld_official", "measure.tie_gap", "experiment=demo"):
        assert words in done.stdout
    assert seconds < 2 or os.getloadavg()[0] > 1.5, f"--help took {seconds:.1f} s"


def test_cfg_job_prints_the_config(start, repo_root):
    done = start(repo_root / "run.py", "--cfg", "job", "method=sps", "model=tiny")
    assert done.returncode == 0, done.stderr
    assert "num_draft_tokens: 5" in done.stdout


def test_tab_completion_offers_choices(start, repo_root):
    done = start(repo_root / "run.py", "-sc", "query=bash", COMP_LINE="python run.py method/controller=")
    assert done.returncode == 0, done.stderr
    assert "method/controller=heuristic" in done.stdout


@pytest.mark.parametrize("words", [["method=pdl"], ["-m", "method=ar,pdl"], ["method=pdl", "experiment=demo"]])
def test_a_mistake_is_one_line_and_exit_code_2(start, repo_root, words):
    done = start(repo_root / "run.py", *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "method=pdl" in done.stderr
    assert "'pld'" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-m", "experiment=confl_lambda,confl_window"], ["one name", "run_paper.py --only confl_lambda,confl_window"]),
        (["experiment=glob(confl_*)"], ["one name", "--only A,B", "confl_window"]),
        (["-m", "method=glob(*_oficial)"], ["matches no choice of method", "pld_official"]),
        (["-m", "method/controller=glob([x*,y*])", "seed=1"], ["matches no choice", "heuristic"]),
    ],
)
def test_a_sweep_that_would_run_something_else_or_nothing_is_refused(start, repo_root, words, told):
    done = start(FAKE, *words)
    assert done.returncode == 2, done.stdout
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    for part in told:
        assert part in line


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-m", "method=ar,pld", "method.max_ngram=3,4"], "method.max_ngram: no such key with method=ar. Legal: "),
        pytest.param(
            ["-m", "method=pld,ar", "method.max_ngram=3"],
            "method.max_ngram: no such key with method=ar. Legal: ",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["experiment=demo", "method.max_ngram=3"],
            "method.max_ngram: no such key with method=ar. Legal: ",
            marks=pytest.mark.slow,
        ),
        (
            ["-m", "method=sps", "method/controller=confidence,fixed", "method.controller.threshold=0.2"],
            "method.controller.threshold: no such key with method/controller=fixed. Legal: ",
        ),
    ],
)
def test_a_key_that_one_of_several_choices_lacks_names_the_choice(start, words, told):
    done = start(FAKE, *words)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"ERROR: {told}")
    assert "did you mean" not in line


def test_the_job_of_a_command_is_called_by_its_target_too(start):
    done = start(FAKE, "model.target=/models/own", "method=sps")
    assert done.returncode == 2
    assert "model=own names none" in done.stderr


def test_a_glob_that_matches_is_swept(start):
    done = start(FAKE, "-m", "measure=glob(*)", "method=ar,pld", "seed=0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "2 of 2 jobs done"


def test_a_bad_value_is_one_line_and_hydra_full_error_keeps_the_traceback(start, repo_root):
    done = start(repo_root / "run.py", "sampling.top_p=2")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    traced = start(repo_root / "run.py", "method.foo=1", HYDRA_FULL_ERROR="1")
    assert traced.returncode == 1
    assert "Traceback" in traced.stderr


def test_failed_samples_give_exit_code_1(start):
    failed = start(FAKE, "seed=1")
    assert (failed.returncode, failed.stderr) == (1, "ERROR: 1 of 8 samples failed\n")


def test_a_failing_job_does_not_stop_a_sweep_and_the_table_names_every_job(start, tmp_path):
    done = start(FAKE, "-m", "seed=2,1,-1,0")
    lines = done.stdout.splitlines()
    assert done.returncode == 2  # a user's mistake (seed=-1) among them
    for number, words in enumerate(["seed=2", "seed=1", "seed=-1", "seed=0"]):
        assert any(line.startswith(f"{number} ") and words in line for line in lines)
    assert any(line.split()[1:] == ["seed=0", "done", "10.000"] for line in lines)
    assert "job 0: ValueError: a bug" in lines
    assert lines[-1] == "1 of 4 jobs done"
    assert not (tmp_path / "outputs").exists()
    assert (tmp_path / "results" / "hydra" / "sweeps").is_dir()


def test_an_interrupt_ends_the_sweep_with_130_and_shows_what_was_done(start):
    done = start(FAKE, "-m", "seed=0,3,4")
    assert done.returncode == 130
    assert "10.000" in done.stdout
    assert "interrupted" in done.stdout
    assert "2     " not in done.stdout  # the third job never started
    assert "kept" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_experiment_starts_a_sweep_and_words_after_it_win(start):
    done = start(FAKE, "experiment=demo", "method=ar,pld", "task=gsm8k", "logger=none", "seed=4")
    assert done.returncode == 0, done.stderr
    assert [line.split()[-2:] for line in done.stdout.splitlines() if "method=" in line] == [["done", "-"]] * 2
    assert done.stdout.splitlines()[-1] == "2 of 2 jobs done"


@pytest.mark.slow
def test_joblib_launcher_runs_jobs_in_parallel_processes(start):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="the joblib extra is not installed")
    done = start(FAKE, "-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "seed=0,1")
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1] == "1 of 2 jobs done"


@pytest.mark.slow
def test_a_killed_worker_is_a_failure_and_the_finished_jobs_are_shown(start):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="the joblib extra is not installed")
    done = start(FAKE, "-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=1", "seed=0,5")
    assert done.returncode != 0
