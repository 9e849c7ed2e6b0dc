"""Every mistake is one clear line and exit code 2; nothing that was measured before is lost."""

from __future__ import annotations

import shutil
import struct
import subprocess

import pytest

from specbench.models.tiny import prepare_tiny
from specbench.results.summary import load_runs, load_samples
from tests.runner.runs import edited_json, local_questions


@pytest.fixture
def refused(run, results):
    """Run words that cannot work; give the one line that says so."""

    def start(*words: str, **options: int) -> str:
        done = run(*words, **options)
        assert done.code == 2, done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout == ""
        (line,) = done.error_lines
        assert done.stderr.splitlines()[-1] == line
        return line

    return start


@pytest.fixture
def target(tmp_path, cache):
    """A copy of the tiny target that a test may spoil."""
    folder = tmp_path / "spoilt"
    shutil.copytree(prepare_tiny(cache)[0], folder)
    return folder


@pytest.mark.slow
def test_a_model_that_is_nowhere(refused, results):
    assert "is no folder here, no .gguf file, no Hub id" in refused("model.target=./no/such/folder")
    assert "unknown tiny model 'tiny:huge'" in refused("model.target=tiny:huge")
    assert not (results / "runs").exists()


def test_an_architecture_that_is_not_supported_is_told_with_those_that_are(refused, target):
    edited_json(target / "config.json", model_type="mamba", architectures=["MambaForCausalLM"])
    line = refused(f"model.target={target}")
    for words in ("MambaForCausalLM", "LlamaForCausalLM", "Qwen3ForCausalLM"):
        assert words in line


def test_a_missing_draft_and_one_that_does_not_pair(refused, tmp_path, cache):
    assert "model.draft=null: method=sps needs a draft model" in refused("method=sps", "model.draft=null")
    draft = tmp_path / "draft"
    shutil.copytree(prepare_tiny(cache)[1], draft)
    text = (draft / "tokenizer.json").read_text()
    swapped = text.replace('"A":', '"@@":').replace('"B":', '"A":').replace('"@@":', '"B":')
    (draft / "tokenizer.json").write_text(swapped)
    line = refused("method=sps", f"model.draft={draft}")
    assert "do not pair: id" in line
    assert "'A' in the target and 'B' in the draft" in line


def test_weights_cut_short_or_spoilt(refused, target):
    weights = target / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    assert f"{weights} is damaged or incomplete" in refused(f"model.target={target}")
    weights.write_bytes(struct.pack("<Q", 9) + b"not json!" + whole[100:])
    assert f"{weights} is damaged or incomplete" in refused(f"model.target={target}")
    weights.unlink()
    assert f"{target} lacks model.safetensors" in refused(f"model.target={target}")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF" + struct.pack("<IQQ", 3, 5, 7), b"no gguf at all" * 9])
def test_a_gguf_file_cut_short(refused, tmp_path, cache, content):
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    assert str(file) in refused(f"model.target={file}")
    assert not list(cache.glob("models/model-*/*"))


def test_a_data_file_that_is_missing_or_corrupt_is_named_with_its_line(refused, tmp_path):
    words = local_questions(tmp_path)
    file = tmp_path / "gsm8k" / "test.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:2], lines[2][:20], lines[3]]))
    assert f"{file}, line 3: not valid JSON" in refused(*words)
    file.unlink()
    assert f"no file {file}" in refused(*words)


def test_no_network_is_told_quickly_with_what_helps(refused):
    line = refused("model=llama3", "data=embedded")
    assert "cannot fetch meta-llama/" in line
    assert "model.target=<local folder>" in line


def test_a_device_that_is_not_there(refused):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert "hardware.device=cuda is not there; available: auto, cpu" in refused("hardware.device=cuda")


def test_a_dtype_that_the_device_cannot_do(monkeypatch, tmp_path, cache):
    from specbench.hardware import devices
    from specbench.types import ConfigError
    from tests.runner.runs import measured, tiny_config

    able = devices._can_multiply
    monkeypatch.setattr(devices, "_can_multiply", lambda dtype, device: "16" not in str(dtype) and able(dtype, device))
    with pytest.raises(ConfigError, match=r"hardware\.dtype=bfloat16 does not work on cpu; it can do float32"):
        measured(tiny_config(["hardware.dtype=bfloat16"], tmp_path, cache))


def test_without_a_chat_template_completion_style_still_works(refused, run, target, results):
    edited_json(target / "tokenizer_config.json", chat_template=None)
    words = (f"model.target={target}", "task=humaneval")
    line = refused(*words)
    assert "has no chat template" in line
    assert "task.style=completion" in line
    assert not (results / "runs").exists()
    done = run(*words, "task.style=completion")
    assert done.code == 0, done.stderr
    assert load_runs(results)["num_measured"].to_list() == [2]


def test_a_results_folder_that_cannot_be_written(refused, tmp_path):
    (tmp_path / "file").write_text("")
    line = refused(f"paths.results_dir={tmp_path}/file/results")
    assert f"{tmp_path}/file" in line
    assert "paths.results_dir" in line


def test_a_cache_folder_that_cannot_be_made(refused):
    line = refused("paths.cache_dir=/dev/null/x")
    assert "/dev/null/x: cannot make this folder (Not a directory)" in line
    assert "paths.cache_dir" in line


def test_a_file_that_cannot_grow_keeps_what_fitted_and_the_run_goes_on_later(refused, run, results):
    words = ("method=sps", "num_samples=6", "measure.exclusive=false")
    line = refused(*words, file_bytes=16_000)
    assert "journal.jsonl: could not write" in line
    (journal,) = results.glob("runs/*/journal.jsonl")
    kept = journal.read_bytes().count(b"\n")
    assert 0 < kept < 6
    done = run(*words)
    assert done.code == 0, done.stderr
    assert f"continuing after {kept} of 6 samples" in done.stderr
    assert load_samples(results)["sample_id"].nunique() == 6


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(refused, run, small_disk):
    words = ("method=sps", "sampling.max_new_tokens=24", f"paths.results_dir={small_disk}")
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1_000_000))
    assert "no space left on the disk" in refused(*words)
    ballast.unlink()
    done = run(*words)
    assert done.code == 0, done.stderr
