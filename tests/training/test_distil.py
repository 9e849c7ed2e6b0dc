"""Training makes a draft better on answers it has not seen, and a killed run ends where a whole one does."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.models.draft import own_slots
from specbench.training.distil import (
    Distillation,
    held_out_part,
    is_held_out,
    reduced_vocabulary,
    start_draft,
)
from specbench.training.loss import DIVERGENCES, backward
from specbench.types import DataError, ModelError
from tests.decoding.tinies import tiny_target
from tests.training.tiny_corpus import SETTINGS, corpus

VOCAB = 200


TARGET = "zero"  # answers with something to learn in seconds: one token is frequent


def distillation(folder: Path, *, vocab_size: int | None = None, **changes: Any) -> Distillation:
    settings = replace(SETTINGS, vocab_size=vocab_size, **changes)
    training, held_out = held_out_part(corpus(TARGET), settings)
    draft = start_draft(tiny_target(TARGET), settings.layers, reduced_vocabulary(training, vocab_size, 261))
    assert draft.head.weight is not None
    kept: list[float] = []
    made = Distillation(
        draft=draft,
        head=draft.head.weight,
        training=training,
        held_out=held_out,
        config=settings,
        folder=folder,
        seed=0,
        keep=lambda progress: kept.append(progress.best),
    )
    made.kept = kept  # type: ignore[attr-defined]
    return made


def weights(run: Distillation) -> torch.Tensor:
    return torch.cat([slot.detach().flatten() for slot in own_slots(run.draft).values()])


@pytest.mark.parametrize("divergence", sorted(DIVERGENCES))
@pytest.mark.parametrize("vocab_size", [None, VOCAB], ids=["full", "reduced"])
def test_training_improves_held_out_acceptance(tmp_path, vocab_size, divergence):
    run = distillation(tmp_path, vocab_size=vocab_size, divergence=divergence)
    before = [weight.clone() for weight in own_slots(tiny_target(TARGET)).values()]
    progress = run.run()
    curve = [entry["acceptance_rate"]["all"] for entry in progress.curve]
    assert max(curve) > 1.1 * curve[0]  # a random function teaches little beyond itself
    assert progress.best == pytest.approx(max(curve), abs=1e-4)
    assert run.kept == sorted(run.kept)  # only ever a better one is kept
    assert progress.tokens == SETTINGS.epochs * sum(e.answer.shape[0] for e in run.training)
    assert set(progress.curve[-1]["acceptance_rate"]) == {"all", "even", "odd"}
    for old, new in zip(before, own_slots(tiny_target(TARGET)).values(), strict=True):
        assert torch.equal(old, new)  # the target lends its tensors and keeps them as they are


def test_a_killed_run_ends_where_a_whole_one_does(tmp_path):
    whole = distillation(tmp_path / "whole")
    whole.run()
    killed = distillation(tmp_path / "killed")
    killed.run(until=25)  # between two checkpoints, after an evaluation
    again = distillation(tmp_path / "killed")
    progress = again.run()
    assert killed.progress.step == 25 < progress.step
    assert torch.equal(weights(whole), weights(again))
    assert progress == whole.progress


def test_other_settings_start_anew(tmp_path, caplog):
    distillation(tmp_path).run(until=10)
    other = distillation(tmp_path, learning_rate=1e-4)
    other.run(until=0)
    assert other.progress.step == 0
    assert "training starts anew" in caplog.text


def test_one_prompt_is_always_on_the_same_side():
    training, held_out = held_out_part(corpus(), SETTINGS)
    fewer, _ = held_out_part(corpus()[:60], SETTINGS)
    assert not any(is_held_out(example.prompt.tolist(), SETTINGS.held_out_every) for example in training)
    assert all(any(a is b for b in training) for a in fewer)
    assert 0 < len(held_out) <= SETTINGS.held_out
    sources = Counter(example.source for example in held_out)
    assert abs(sources["even"] - sources["odd"]) <= 4


def test_too_few_answers_are_refused():
    with pytest.raises(DataError, match="held_out_every"):
        held_out_part([e for e in corpus() if not is_held_out(e.prompt.tolist(), SETTINGS.held_out_every)], SETTINGS)


def test_a_layer_that_the_target_lacks_is_refused():
    with pytest.raises(ModelError, match=r"layer 6; the target has layers 0 to 5"):
        start_draft(tiny_target(), [0, 6], None)
    last = start_draft(tiny_target(), [-1], None)
    assert torch.equal(last.layers[0].norms[0], tiny_target().layers[5].norms[0])


def test_the_reduced_vocabulary_holds_the_most_frequent_tokens():
    counts = Counter(token for example in corpus() for token in example.answer.tolist())
    ids = reduced_vocabulary(corpus(), 40, 261)
    assert ids is not None
    assert ids.tolist() == sorted(set(ids.tolist()))
    rarest = min(counts[token] for token in ids.tolist())
    assert rarest >= max(counts[token] for token in range(261) if token not in ids.tolist())
    assert reduced_vocabulary(corpus(), None, 261) is None
    assert reduced_vocabulary(corpus(), 261, 261) is None


@pytest.mark.parametrize("name", sorted(DIVERGENCES))
def test_gradients_in_parts_are_those_of_the_whole(name):
    draws = torch.Generator().manual_seed(0)
    head = torch.randn(50, 8, generator=draws)
    states, start = torch.randn(300, 8, generator=draws), torch.randn(300, 8, generator=draws)
    full = torch.cat([head, torch.randn(20, 8, generator=draws)])  # the target scores more tokens than the draft
    log_z = (states @ full.T).logsumexp(-1)
    ours, theirs = start.clone().requires_grad_(), start.clone().requires_grad_()
    loss = backward(ours * 1.0, states, log_z, head, divergence=DIVERGENCES[name])
    log_p = states @ head.T - log_z[:, None]
    whole = DIVERGENCES[name](log_p, (theirs @ head.T).log_softmax(-1)).mean()
    whole.backward()
    assert loss == pytest.approx(float(whole.detach()), rel=1e-5)
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-6)
