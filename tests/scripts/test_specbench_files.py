"""The command writes files of a stored run that score, and fails with one clear line."""

import subprocess
import sys

import pytest

from specbench.results.specbench_files import read_answers, score
from specbench.results.store import RunStore

RUN = "tiny-sps-gsm8k_mini-0123abcd"


def sample_row(arm: str, num_tokens: int, decode_s: float) -> dict:
    key = {"sample_id": "gsm8k/3", "turn": 0, "arm": arm, "attempt": 0, "repeat": 0}
    answer = {"finish_reason": "stop", "text": "so it is 4", "num_tokens": num_tokens, "tokens": [1] * num_tokens}
    return key | answer | {"used": True, "category": "", "timed": True, "prefill_s": 1.0, "decode_s": decode_s}


def step_row(arm: str, step: int, emitted: int) -> dict:
    key = {"sample_id": "gsm8k/3", "turn": 0, "arm": arm, "attempt": 0, "repeat": 0}
    seconds = dict.fromkeys(("draft_s", "verify_s", "adapt_s", "host_s"), 0.1)
    counts = dict.fromkeys(("num_tree_tokens", "num_passengers", "num_accepted", "num_accepted_spine"), 0)
    rest = {"context_length": 5, "num_emitted": emitted, "draft_tokens": [], "info": "{}"}
    return key | seconds | counts | rest | {"step": step}


@pytest.fixture
def run_dir(tmp_path):
    folder = tmp_path / RUN
    samples = [sample_row("method", 4, 1.0), sample_row("baseline", 4, 3.0)]
    steps = [step_row("method", 0, 3), step_row("method", 1, 1), *(step_row("baseline", n, 1) for n in range(4))]
    with RunStore(folder) as store:
        store.write_config("task:\n  name: gsm8k_mini\n")
        store.append("gsm8k/3", samples, steps)
        store.finalize({"task": "gsm8k_mini"}, status="finished")
    return folder


def command(repo_root, *arguments) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, str(repo_root / "scripts" / "specbench_files.py"), *map(str, arguments)]
    return subprocess.run(script, capture_output=True, text=True, timeout=120, cwd=repo_root, check=False)


def test_both_arms_are_exported_and_score(repo_root, run_dir, tmp_path):
    answer = command(repo_root, "export", run_dir, tmp_path / "out")
    assert answer.returncode == 0, answer.stderr
    method, baseline = tmp_path / "out" / f"{RUN}.jsonl", tmp_path / "out" / f"{RUN}-baseline.jsonl"
    assert [a.category for a in read_answers(method)] == ["math_reasoning"]
    figures = score(method, baseline, len, "math_reasoning", baseline_count="recorded")
    assert figures["speedup"] == pytest.approx((4 / 2) / (4 / 4))
    assert figures["mean_accepted_tokens"] == 2.0
    assert "1 answers, 4 tokens in 2.000 s, mat 2.000" in command(repo_root, "import", method).stdout


def test_a_missing_run_is_one_line(repo_root, tmp_path):
    answer = command(repo_root, "export", tmp_path / "nowhere", tmp_path / "out")
    assert answer.returncode != 0
    assert answer.stderr.startswith("error: ")
    assert len(answer.stderr.splitlines()) == 1
