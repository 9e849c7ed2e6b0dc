"""The tiny pairs behave like a real pair: the draft is often right, id 0 is common, answers end."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specbench.models.checkpoint import load_model
from specbench.models.tiny import SPEC, VARIANTS, prepare_tiny, target_weights
from tests.decoding.tinies import tiny_draft, tiny_target

PROMPTS = [b"The cat sat on the mat.", b"1, 2, 3, 4", b"def main():"]


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@functools.cache
def greedy_and_draft(variant: str, count: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    """Greedy answers of the target [P, count] and what the draft says at the same places."""
    answers, guesses = [], []
    with torch.inference_mode():
        for text in PROMPTS:
            ids, first = torch.tensor([[256, *text]]), len(text) + 1
            for _ in range(count):
                ids = torch.cat([ids, tiny_target(variant).forward(ids, logits="last").logits.argmax(-1)], dim=1)
            answers.append(ids[0, first:])
            guesses.append(tiny_draft(variant).forward(ids).logits[0, first - 1 : -1].argmax(-1))
    return torch.stack(answers), torch.stack(guesses)


@pytest.mark.parametrize("variant", VARIANTS)
def test_draft_agrees_often_but_not_always(variant: str) -> None:
    answers, guesses = greedy_and_draft(variant)
    assert 0.4 <= float((answers == guesses).float().mean()) <= 0.9
    assert len(answers.unique()) > 10


def test_id_zero_is_frequent_where_it_should_be() -> None:
    share = {variant: float((greedy_and_draft(variant)[0] == 0).float().mean()) for variant in ("plain", "zero")}
    assert share["zero"] > 0.08 > share["plain"]


def test_answers_end_where_they_should() -> None:
    ends = {variant: (greedy_and_draft(variant)[0] == 260).any(1).sum() for variant in ("plain", "eos")}
    assert ends["eos"] > ends["plain"]


def test_folders_are_made_once_and_load(cache_dir: Path) -> None:
    target, draft = prepare_tiny(cache_dir)
    made = (target / "model.safetensors").stat().st_mtime_ns
    assert prepare_tiny(cache_dir) == (target, draft)
    assert (target / "model.safetensors").stat().st_mtime_ns == made
    ids = torch.tensor([[256, 65, 66, 67]])
    for folder, expected in ((target, tiny_target()), (draft, tiny_draft())):
        loaded = load_model(str(folder), dtype=torch.float32, device="cpu", cache_dir=cache_dir)
        assert torch.equal(loaded.decoder.forward(ids).logits, expected.forward(ids).logits)
        assert loaded.stop_ids == {260}
        assert loaded.chat is not None


def test_the_library_reads_the_folder_alike(cache_dir: Path) -> None:
    target, _ = prepare_tiny(cache_dir)
    ids = torch.tensor([[256, 65, 66, 67, 200, 3]])
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)(ids).logits
    torch.testing.assert_close(tiny_target().forward(ids).logits, expected, rtol=0, atol=1e-4)
    tokenizer = AutoTokenizer.from_pretrained(target)
    assert tokenizer.decode(tokenizer("héllo\n").input_ids) == "héllo\n"
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert rendered == "<s><|user|>hi<|end|>"


def test_half_made_folders_are_not_taken_for_whole(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import specbench.models.tiny as tiny

    def interrupted(folder: Path, variant: str) -> None:
        (folder / "target").mkdir()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tiny, "write_pair", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare_tiny(cache_dir, "eos")
    target, draft = prepare_tiny(cache_dir, "eos")
    assert (target / "model.safetensors").is_file()
    assert (draft / "model.safetensors").is_file()
    assert not list((cache_dir / "models").glob(".tiny-*"))


def test_seeds_make_other_weights() -> None:
    first, second = target_weights(seed=0), target_weights(seed=1)
    assert first.keys() == second.keys()
    assert not torch.equal(first["lm_head.weight"], second["lm_head.weight"])
    assert first["lm_head.weight"].shape == (SPEC.vocab_size, SPEC.hidden_size)
