"""The library's decoding as a reference: the same greedy answer in all modes, exact cuts, honest seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.models.hf_generate import HfGenerator, load_hf
from specbench.types import ModelError, Sampling
from tests.models.hf_folders import save_model

PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]
MODES = ["ar", "assisted", "pld"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hf")
    save_model(path, tie_word_embeddings=True, initializer_range=0.3)
    return path


def reference(folder: Path, mode: str, sampling: Sampling | None = None, **settings: Any) -> HfGenerator:
    draft = load_hf(folder, dtype=torch.float32, device="cpu") if mode == "assisted" else None
    model = load_hf(folder, dtype=torch.float32, device="cpu")
    return HfGenerator(model, mode=mode, sampling=sampling or Sampling(), draft=draft, settings=settings)


def greedy(model: Any, num_tokens: int) -> tuple[int, ...]:
    ids = list(PROMPT)
    for _ in range(num_tokens):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return tuple(ids[len(PROMPT) :])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("budget", [1, 23])
def test_greedy_answer_is_the_models_own(folder: Path, mode: str, budget: int) -> None:
    generator = reference(folder, mode)
    generation = generator.generate(PROMPT, max_new_tokens=budget, seed=0)
    assert generation.tokens == greedy(generator.model, budget)
    assert generation.finish_reason == "length"
    assert generation.steps is None
    assert generation.prefill_s > 0
    assert generation.decode_s > 0
    assert generation.ttft_s > 0


@pytest.mark.parametrize("mode", MODES)
def test_answer_ends_with_the_first_stop_id(folder: Path, mode: str) -> None:
    generator = reference(folder, mode)
    expected = greedy(generator.model, 12)
    stops = {expected[8], expected[10]}
    cut = next(i for i, token in enumerate(expected) if token in stops)
    generation = generator.generate(PROMPT, max_new_tokens=30, seed=0, stop_ids=stops)
    assert generation.tokens == expected[: cut + 1]
    assert generation.finish_reason == "stop"


def test_ar_decodes_every_token_after_the_prefill(folder: Path) -> None:
    generator = reference(folder, "ar")
    rows: list[int] = []
    hook = generator.model.model.register_forward_pre_hook(
        lambda _, args, kwargs: rows.append((args[0] if args else kwargs["input_ids"]).shape[1]), with_kwargs=True
    )
    generator.generate(PROMPT, max_new_tokens=5, seed=0)
    hook.remove()
    assert rows == [len(PROMPT) - 1, 1, 1, 1, 1, 1]


def test_one_token_prompt_needs_no_prefill(folder: Path) -> None:
    generation = reference(folder, "ar").generate([5], max_new_tokens=4, seed=0)
    assert (len(generation.tokens), generation.prefill_s) == (4, 0.0)


@pytest.mark.parametrize("mode", MODES)
def test_sampling_follows_the_seed_and_leaves_the_callers_generator_alone(folder: Path, mode: str) -> None:
    generator = reference(folder, mode, Sampling(temperature=1.0, top_k=50, top_p=0.95))
    state = torch.random.get_rng_state()
    answers = [generator.generate(PROMPT, max_new_tokens=16, seed=seed).tokens for seed in (1, 1, 2)]
    assert answers[0] == answers[1] != answers[2]
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    ("mode", "settings", "longest"),
    [
        ("pld", {"num_draft_tokens": 3, "max_ngram": 2}, 3),
        ("assisted", {"num_assistant_tokens": 4, "schedule": "constant", "assistant_confidence_threshold": 0.0}, 4),
    ],
)
def test_settings_bound_what_is_drafted(folder: Path, mode: str, settings: dict[str, Any], longest: int) -> None:
    generator = reference(folder, mode, **settings)
    rows: list[int] = []
    hook = generator.model.model.register_forward_pre_hook(
        lambda _, args, kwargs: rows.append((args[0] if args else kwargs["input_ids"]).shape[1]), with_kwargs=True
    )
    generation = generator.generate(PROMPT, max_new_tokens=24, seed=0)
    hook.remove()
    assert generation.tokens == greedy(generator.model, 24)
    prefill, first, *later = rows
    assert (prefill, first) == (len(PROMPT) - 1, len(PROMPT) + longest)
    assert max(later) == longest + 1


def test_modes_and_drafts_must_fit(folder: Path) -> None:
    with pytest.raises(ModelError, match="ar, assisted, pld"):
        reference(folder, "beam")
    with pytest.raises(ModelError, match="draft model belongs to mode 'assisted'"):
        HfGenerator(None, mode="assisted", sampling=Sampling())


def test_a_folder_that_the_library_cannot_load_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"transformers cannot load {tmp_path}"):
        load_hf(tmp_path, dtype=torch.float32, device="cpu")
