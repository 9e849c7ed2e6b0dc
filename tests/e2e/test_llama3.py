"""model=llama3 on a pair in local folders, and what is said where there are none and no network."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specbench.models.tiny import prepare_tiny
from specbench.results.summary import load_runs, load_samples
from tests.e2e.command import ROOT, Command
from tests.runner.runs import edited_json, local_questions

SPECIALS = {
    "<s>": "<|begin_of_text|>",
    "</s>": "<|end_of_text|>",
    "<|user|>": "<|start_header_id|>",
    "<|assistant|>": "<|end_header_id|>",
    "<|end|>": "<|eot_id|>",
}
ROPE = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
TEMPLATE = (
    "{%- if not date_string is defined %}{%- set date_string = strftime_now('%d %b %Y') %}{%- endif %}"
    "{{- bos_token }}{{- '<|start_header_id|>system<|end_header_id|>\n\nToday Date: ' + date_string + '<|eot_id|>' }}"
    "{%- for m in messages %}"
    "{{- '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] + '<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
REPOSITORIES = ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B-Instruct")


@pytest.fixture
def pair(tmp_path: Path, cache: Path) -> tuple[Path, Path]:
    """Llama-3's positions, special tokens and template on the weights of the tiny pair."""
    made = tmp_path / "models" / "target", tmp_path / "models" / "draft"
    for source, folder in zip(prepare_tiny(cache), made, strict=True):
        shutil.copytree(source, folder)
        edited_json(folder / "config.json", rope_theta=500000.0, rope_scaling=ROPE)
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        for ours, theirs in SPECIALS.items():
            assert f'"{ours}"' in text
            text = text.replace(f'"{ours}"', f'"{theirs}"')
        (folder / "tokenizer.json").write_text(text, encoding="utf-8")
        names = {"bos_token": SPECIALS["<s>"], "eos_token": SPECIALS["<|end|>"]}
        edited_json(folder / "tokenizer_config.json", **names, chat_template=TEMPLATE)
    return made


@pytest.fixture
def sweep(tmp_path: Path, results: Path, cache: Path) -> list[str]:
    """The words that both tests share."""
    machine = ["hardware.device=cpu", "hardware.dtype=float32", "hardware.num_threads=1", "measure.warmup=0"]
    paths = [f"paths.results_dir={results}", f"paths.cache_dir={cache}"]
    return ["-m", "method=pacer,confl", "model=llama3", "task=gsm8k", *local_questions(tmp_path), *machine, *paths]


@pytest.mark.slow
def test_local_folders_take_the_place_of_the_repositories(
    pair: tuple[Path, Path], sweep: list[str], tmp_path: Path, results: Path, environment: dict[str, str]
) -> None:
    folders = [f"model.target.path={pair[0]}", f"model.draft.path={pair[1]}"]
    small = ["artefact.num_prompts=6", "artefact.max_new_tokens=24", "sampling.max_new_tokens=24"]
    done = Command([*sweep, *folders, *small], tmp_path / "command", environment=environment).wait()
    assert done.code == 0, done.stderr
    assert "2 of 2 jobs done" in done.stdout
    runs = load_runs(results).set_index("method")
    assert set(runs.index) == {"pacer", "confl"}
    assert set(runs["model"]) == {"llama3"}
    assert list(runs["exact_match_rate"]) == [1.0, 1.0]
    assert runs.loc["pacer", "acceptance_rate"] > 0
    first = load_samples(results)["prompt_sha256"].nunique()
    assert first == 4  # questions, the same text for both methods


@pytest.mark.parametrize("network", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}], ids=str)
def test_without_network_one_error_comes_within_seconds(
    sweep: list[str], tmp_path: Path, results: Path, network: dict[str, str]
) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, str(ROOT / "run.py"), *sweep],
        cwd=tmp_path,
        env={**kept, **network, "HF_HOME": str(tmp_path / "hub"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 2, done.stderr
    errors = [line for line in done.stderr.splitlines() if "ERROR" in line]
    assert len(errors) == 1
    for words in (*REPOSITORIES, "python scripts/prefetch.py", "model.target=", "model.draft="):
        assert words in errors[0]
    assert "Traceback" not in done.stderr
    assert not (results / "runs").exists()
    # Processor time: on a machine with other work to do a clock would tell of that.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 10
