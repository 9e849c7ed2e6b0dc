"""scripts/convert_mla.py: a folder that both libraries load, and errors that say what is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from scripts import convert_mla
from specbench.conversion import calibration
from specbench.models.checkpoint import load_decoder
from specbench.models.tiny import prepare_tiny
from tests.few_documents import few_documents

WORDS = (
    "model=tiny",
    "hardware.device=cpu",
    "hardware.num_threads=1",
    "method.freqfold=1",
    "method.reconstruct.updates=3",
    "method.calibration.num_sequences=4",
    "method.calibration.held_out=2",
    "method.calibration.sequence_length=32",
    "method.calibration.sources=[documentation]",
)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def command(*words: str) -> int:
        cache = f"paths.cache_dir={tmp_path / 'cache'}"
        monkeypatch.setattr(sys, "argv", ["convert_mla.py", *WORDS, cache, *words])
        return convert_mla.main()

    with few_documents(calibration):
        yield command


def test_a_folder_that_loads_anywhere(run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import AutoModelForCausalLM

    folder = tmp_path / "converted"
    assert run("--out", str(folder)) == 0
    out = capsys.readouterr().out
    assert "mean relative error of 2 layers" in out
    assert f"method.folder={folder}" in out
    ids = torch.tensor([[256, 72, 101, 108, 108, 111]])
    ours = load_decoder(folder, dtype=torch.float32, device="cpu").forward(ids).logits
    theirs = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(ours, theirs(ids).logits, rtol=1e-4, atol=1e-4)


def test_the_original_stays_as_it_was(run, tmp_path: Path) -> None:
    source = prepare_tiny(tmp_path / "cache")[1]
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    assert run() == 0
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("method.converter=none", "nothing to convert"),
        ("method.rope_dim=1000", "method.rope_dim=1000: legal for this model with transmla"),
        ("method.nonsense=1", "nonsense"),
    ],
)
def test_errors_are_one_line(run, word: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(word) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert message in err
