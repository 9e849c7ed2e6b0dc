"""A trained draft lives on the target's embedding and head, is exact with any vocabulary, and fits one target only."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from scripts.golden.enumeration import BranchDraws, continued, distribution
from specbench.controllers.fixed import FixedLength
from specbench.decoding.loop import SpeculativeDecoding
from specbench.decoding.protocol import Request
from specbench.decoding.sampling import probabilities
from specbench.decoding.target import Target
from specbench.decoding.verification import verify
from specbench.hardware.timer import PhaseTimer
from specbench.methods.ar import Autoregressive
from specbench.methods.sps import SpeculativeSampling
from specbench.models.checkpoint import LoadedModel, load_model
from specbench.models.decoder import Decoder
from specbench.models.draft import (
    copy_layers,
    export_library,
    find_draft,
    library_folder,
    load_draft,
    new_draft,
    own_slots,
    save_draft,
)
from specbench.models.hf_generate import load_hf
from specbench.models.linear import Linear, ReducedHead
from specbench.models.tiny import write_pair
from specbench.types import ModelError, Sampling
from tests.methods.test_sps import small
from tests.models.hf_folders import save_model, save_tokenizer

IDS = torch.tensor([10 * i for i in range(26)] + [256])


def card(target: LoadedModel) -> dict[str, Any]:
    return {"target": target.name, "target_revision": target.revision}


def loaded(folder: Path, dtype: torch.dtype = torch.float32) -> LoadedModel:
    return load_model(str(folder), dtype=dtype, device="cpu", cache_dir=folder)


def written(folder: Path, target: LoadedModel, ids: Tensor | None, layers: tuple[int, ...] = (0, 1)) -> Path:
    draft = new_draft(target.decoder, len(layers), ids)
    copy_layers(target.decoder, draft, layers)
    save_draft(folder, draft.finish("library"), target.folder, head_ids=ids, card=card(target))
    return folder


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> LoadedModel:
    return loaded(write_pair(tmp_path_factory.mktemp("pair"))[0])


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def qwen(request, tmp_path_factory) -> LoadedModel:
    """A target of another family, with q/k norms."""
    folder = tmp_path_factory.mktemp("qwen")
    save_model(folder, "qwen3", tie_word_embeddings=request.param)
    save_tokenizer(folder)
    return loaded(folder)


@pytest.mark.parametrize("ids", [None, torch.tensor([3, 5, 90])], ids=["full", "reduced"])
def test_a_draft_comes_back_on_the_targets_tensors(tmp_path, qwen, ids):
    found = load_draft(written(tmp_path, qwen, ids, layers=(1, 0)), qwen)
    assert found.decoder.embedding.data_ptr() == qwen.decoder.embedding.data_ptr()
    if ids is None:
        assert found.decoder.head is qwen.decoder.head
    assert found.chat is qwen.chat
    stored = load_file(tmp_path / "draft.safetensors")
    assert not any("embed" in name or "lm_head" in name for name in stored)
    expected = qwen.decoder.slots()["model.layers.1.self_attn.q_norm.weight"].bfloat16().float()
    assert torch.equal(own_slots(found.decoder)["model.layers.0.self_attn.q_norm.weight"], expected)


def test_its_logits_are_those_of_the_whole_head_where_it_scores_and_nothing_elsewhere(tmp_path, qwen):
    ids = torch.tensor([3, 5, 90])
    whole = load_draft(written(tmp_path / "whole", qwen, None), qwen)
    reduced = load_draft(written(tmp_path / "reduced", qwen, ids), qwen)
    rows = torch.arange(1, 9)[None]
    full, few = whole.decoder.forward(rows).logits, reduced.decoder.forward(rows).logits
    assert few.shape == full.shape
    assert torch.allclose(few[..., ids], full[..., ids], atol=1e-5)
    others = [token for token in range(full.shape[-1]) if token not in ids.tolist()]
    assert bool((few[..., others] == float("-inf")).all())


def test_a_reduced_draft_can_score_the_whole_vocabulary_and_is_another_draft_then(tmp_path, qwen):
    ids = torch.tensor([3, 5, 90])
    whole = load_draft(written(tmp_path / "whole", qwen, None), qwen)
    folder = written(tmp_path / "reduced", qwen, ids)
    own, full = load_draft(folder, qwen), load_draft(folder, qwen, "full")
    rows = torch.arange(1, 9)[None]
    assert torch.equal(full.decoder.forward(rows).logits, whole.decoder.forward(rows).logits)
    assert full.revision == f"{own.revision}-full"  # a gate or a length for the reduced draft is not for this one


def test_packed_products_serve_target_and_draft(tmp_path, qwen):
    """In bfloat16 on such CPUs the target's head may be packed away before the draft needs rows of it."""
    ids = torch.tensor([3, 5, 90])
    folders = written(tmp_path / "few", qwen, ids), written(tmp_path / "all", qwen, None)
    low = loaded(qwen.folder, torch.bfloat16)
    unpacked = [load_draft(folder, qwen).decoder for folder in folders]
    packed = _packed_again(low, qwen.folder)
    rows = torch.arange(1, 9)[None]
    for folder, wide in zip(folders, unpacked, strict=True):
        draft = load_draft(folder, packed).decoder
        assert draft.linear_path == "packed"
        assert all(linear.weight is None for linear in draft.linears())
        expected, found = wide.forward(rows).logits[..., ids], draft.forward(rows).logits[..., ids]
        assert torch.allclose(found, expected, atol=0.3)


def _packed_again(model: LoadedModel, folder: Path) -> LoadedModel:
    """The target with packed weights, whatever this machine would choose."""
    from specbench.models.checkpoint import fill_slots, weight_files

    decoder = Decoder(model.spec, dtype=torch.bfloat16)
    fill_slots(decoder.slots(), weight_files(folder))
    return replace(model, decoder=decoder.finish("packed"))


def test_a_draft_of_another_target_is_refused(tmp_path, target):
    folder = written(tmp_path, target, IDS)
    other = replace(target, name="another", revision="local-0123")
    with pytest.raises(
        ModelError, match=r"trained for target \(revision local-\w+\), not for another \(revision local-0123\)"
    ):
        load_draft(folder, other)


def test_what_is_no_trained_draft_is_left_to_others(tmp_path, target):
    assert find_draft(str(target.folder)) is None
    assert find_draft("owner/name") is None
    folder = written(tmp_path / "draft", target, None)
    assert find_draft(str(folder)) == folder
    with pytest.raises(ModelError, match=r"model.draft=artefact:nothing: no such draft is shipped"):
        find_draft("artefact:nothing")


def test_a_damaged_draft_is_refused_by_name(tmp_path, target):
    folder = written(tmp_path, target, IDS)
    stored = load_file(folder / "draft.safetensors")
    stored.pop("model.norm.weight")
    save_file(stored, folder / "draft.safetensors")
    with pytest.raises(ModelError, match=r"model\.norm\.weight"):
        load_draft(folder, target)


@pytest.mark.parametrize("ids", [None, IDS], ids=["full", "reduced"])
def test_the_library_loads_the_exported_draft(tmp_path, target, ids):
    """The same layers with the whole head, as a model of its own."""
    folder = written(tmp_path / "draft", target, ids)
    with library_folder(folder, target.folder) as exported:
        model = load_hf(exported, dtype=torch.float32, device="cpu")
        ours = loaded(exported).decoder
    whole = load_draft(written(tmp_path / "whole", target, None), target)
    rows = torch.arange(1, 20)[None]
    with torch.no_grad():
        expected = model(rows).logits
    assert torch.allclose(whole.decoder.forward(rows).logits, expected, atol=1e-4)
    assert torch.allclose(ours.forward(rows).logits, expected, atol=1e-4)
    assert not exported.exists()
    with library_folder(target.folder, target.folder) as same:
        assert same == target.folder


def test_an_export_can_be_kept(tmp_path, target):
    out = tmp_path / "library"
    export_library(written(tmp_path / "draft", target, IDS), target.folder, out)
    assert loaded(out).chat is not None
    assert find_draft(str(out)) is None


# ---- exactness with a reduced vocabulary


def test_greedy_answers_are_the_targets_own(tmp_path, target):
    draft = load_draft(written(tmp_path, target, IDS), target).decoder
    answers = []
    for drafter in (Autoregressive(), SpeculativeSampling(draft, FixedLength(4))):
        generator = SpeculativeDecoding(Target(target.decoder), drafter)
        answers.append(generator.generate((256, 84, 104, 101), max_new_tokens=60, seed=0))
    assert answers[0].tokens == answers[1].tokens
    drafted = {token for step in answers[1].steps for token in step.draft_tokens}
    assert drafted <= set(IDS.tolist())
    assert not set(answers[0].tokens) <= set(IDS.tolist())  # the target went where the draft cannot
    assert sum(step.num_accepted for step in answers[1].steps) > 0


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.7, top_k=3), Sampling(1.0, top_p=0.8)], ids=str)
@pytest.mark.parametrize("length", [1, 2])
def test_sampled_tokens_have_the_targets_distribution_exactly(length: int, sampling: Sampling) -> None:
    """Every outcome of a step is enumerated: what comes out is the target's own joint distribution."""
    model, prompt = small(2, layers=2), [1, 2]
    best = int(_following(model, prompt, sampling).argmax())
    draft = _reduced(model, torch.tensor([token for token in range(5) if token not in (best, (best + 1) % 5)]))
    outputs = distribution(functools.partial(_step, model, draft, prompt, length, sampling))
    assert len(outputs) > 1
    found = continued(outputs, length + 1, lambda prefix: _following(model, [*prompt, *prefix], sampling).tolist())
    for sequence, chance in found.items():
        expected = 1.0
        for place, token in enumerate(sequence):
            expected *= float(_following(model, [*prompt, *sequence[:place]], sampling)[token])
        assert chance == pytest.approx(expected, abs=1e-5)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-5)
    assert any(sequence[0] == best for sequence in found)  # a token that the draft lacks


def _reduced(model: Decoder, ids: Tensor) -> Decoder:
    draft = new_draft(model, 1, ids)
    copy_layers(model, draft, [0])
    return draft.finish("library")


@torch.inference_mode()
def _step(
    model: Decoder, draft: Decoder, prompt: list[int], length: int, sampling: Sampling, draws: BranchDraws
) -> tuple[int, ...]:
    request = Request(Target(model), list(prompt), sampling, draws, frozenset(), 8, PhaseTimer())
    drafter = SpeculativeSampling(draft, FixedLength(length))
    drafter.begin(request)
    request.target.prefill(prompt, capacity=16)
    proposed = drafter.propose(length)
    result = request.target.verify(prompt[-1], proposed, drafter.needs(), greedy=False)
    return verify(proposed, result, sampling=sampling, draws=draws).tokens


def _following(model: Decoder, tokens: list[int], sampling: Sampling) -> Tensor:
    return probabilities(model.forward(torch.tensor([tokens])).logits[0, -1], sampling)


# ---- the head itself


def test_a_reduced_head_scatters_and_packs():
    weight = torch.randn(4, 24, generator=torch.Generator().manual_seed(0))
    ids, x = torch.tensor([7, 1, 3, 9]), torch.randn(2, 3, 24, generator=torch.Generator().manual_seed(1))
    for pack in (False, True):
        head, plain = ReducedHead(weight.clone(), ids, 11), Linear(weight.clone())
        if pack:
            head.prepare("packed")
            head.prepare("packed")  # shared by two models: the second time changes nothing
            plain.prepare("packed")
        logits = head(x)
        assert logits.shape == (2, 3, 11)
        assert torch.equal(logits[..., ids], plain(x))
        assert int(logits.isfinite().sum()) == 2 * 3 * 4
