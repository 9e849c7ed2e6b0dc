"""Labels by hand, the loss by its formula, and heads that find what is there to be found."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from specbench.controllers.heads import ResidualHead, ScalarHead, loaded
from specbench.models.artefact import load_artefact
from specbench.training.calibration import fitted_temperature, scores
from specbench.training.heads import (
    FitOptions,
    fit_scalars,
    fit_specdecpp,
    scalar_examples,
    split,
    state_examples,
)
from specbench.training.labels import labels, weighted_loss
from specbench.training.reliability import auc, expected_calibration_error
from specbench.training.rollouts import Rollouts
from specbench.types import ConfigError, ModelError

KEY = {"target": "t", "draft": "d", "drafter": "sps"}
NAN = math.nan
QUICK = FitOptions(epochs=10, lr=0.02, batch_tokens=64)


def rollouts(steps: list[tuple[int, int]], **changes: Tensor) -> Rollouts:
    """Steps as (drafted, accepted); every step is a prompt of its own."""
    counts = [drafted for drafted, _ in steps]
    step = torch.repeat_interleave(torch.arange(len(steps)), torch.tensor(counts))
    index = torch.cat([torch.arange(1, count + 1) for count in counts])
    accepted = index <= torch.tensor([a for _, a in steps])[step]
    known = index <= torch.tensor([a for _, a in steps])[step] + 1
    n, order = len(step), torch.arange(len(step))
    fields = {
        "hidden": order[:, None].float().expand(n, 3),
        "token": order,
        "prob": torch.full((n,), 0.5),
        "entropy": torch.full((n,), 1.0),
        "margin": torch.full((n,), 2.0),
        "index": index,
        "accepted": accepted,
        "accept_prob": torch.where(known, 0.5, NAN),
        "step": step,
        "step_prompt": torch.arange(len(steps)),
        "step_context": torch.full((len(steps),), 10),
        "step_root": torch.zeros(len(steps), dtype=torch.int64),
    }
    return Rollouts(**{**fields, **changes})


STEPS = [(3, 3), (3, 1), (3, 0), (2, 2)]  # all accepted; the second rejected; the first; ended by a stop id


def test_labels_by_hand() -> None:
    data = rollouts(STEPS)
    survive, everywhere = labels(data, "survive")
    assert survive.tolist() == [1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1]
    assert everywhere.all()
    conditional, defined = labels(data, "conditional")
    assert conditional[defined].tolist() == [1, 1, 1, 1, 0, 0, 1, 1]
    assert defined.tolist() == [True, True, True, True, True, False, True, False, False, True, True]
    soft, soft_defined = labels(data, "soft")
    assert torch.equal(soft_defined, defined)
    assert soft[defined].tolist() == [0.5] * 8
    with pytest.raises(ConfigError, match=r"label=hard: .*survive, conditional, soft"):
        labels(data, "hard")


def test_the_loss_is_the_published_formula() -> None:
    logits, a = torch.tensor([0.3, -1.2, 2.0]), torch.tensor([1.0, 0.2, 0.0])
    p1 = torch.sigmoid(logits)
    top = (6 * (1 - a) * -(1 - p1).log() + a * -p1.log()).sum()
    assert float(weighted_loss(logits, a, reject_weight=6.0)) == pytest.approx(float(top / (6 * (1 - a) + a).sum()))
    plain = torch.nn.functional.binary_cross_entropy_with_logits(logits, a)
    assert float(weighted_loss(logits, a)) == pytest.approx(float(plain))


# ---- examples


def test_own_states_are_those_of_the_next_token() -> None:
    data = rollouts(STEPS)
    predictor = state_examples(data, "survive", state="predictor")
    assert predictor.features[:, 0].tolist() == list(range(11))
    own = state_examples(data, "survive", state="own")
    assert own.features[:, 0].tolist() == [1, 2, 4, 5, 7, 8, 10]  # the last token of each step has none
    assert own.label.tolist() == [1, 1, 1, 0, 0, 0, 1]
    assert own.index.tolist() == [1, 2, 1, 2, 1, 2, 1]


def test_examples_without_a_label_are_left_out() -> None:
    data = rollouts(STEPS)
    assert len(scalar_examples(data, "conditional")) == 8
    assert scalar_examples(data, "survive").features[4].tolist() == pytest.approx([math.log(0.5), 1.0, 2.0, 2.0])


def test_a_prompt_is_fitted_or_judged_by() -> None:
    examples = scalar_examples(rollouts([(4, 2)] * 10), "survive")
    train, held = split(examples, FitOptions(held_out=0.3))
    assert not set(train.prompt.tolist()) & set(held.prompt.tolist())
    assert len(set(held.prompt.tolist())) == 3
    with pytest.raises(ModelError, match=r"1 prompt\(s\)"):
        split(scalar_examples(rollouts([(4, 2)]), "survive"), FitOptions())


# ---- calibration


def test_a_temperature_undoes_a_scale() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4000, generator=generator)
    label = torch.bernoulli(torch.sigmoid(logits), generator=generator)
    assert fitted_temperature(3 * logits, label) == pytest.approx(3.0, rel=0.1)


def test_scores_by_hand() -> None:
    chance, right = np.array([0.9, 0.6, 0.4, 0.1]), np.array([True, False, True, False])
    assert auc(chance, right) == pytest.approx(0.75)
    assert auc(chance, np.ones(4, dtype=bool)) is None
    assert expected_calibration_error(np.array([0.9, 0.9]), np.array([1.0, 0.0])) == pytest.approx(0.4)
    found = scores(torch.tensor([0.8, 0.2, 0.7]), torch.tensor([1.0, 0.0, 0.0]), torch.tensor([1, 1, 2]))
    assert found["brier"] == pytest.approx((0.04 + 0.04 + 0.49) / 3)
    assert found["auc_by_index"] == {"1": 1.0, "2": None}
    assert found["tokens_by_index"] == {"1": 2, "2": 1}


# ---- fitting


def learnable(seed: int = 0) -> Rollouts:
    """Steps of one token whose acceptance depends on entropy, and on the first entry of its state."""
    generator = torch.Generator().manual_seed(seed)
    n = 1500
    entropy = 2 * torch.rand(n, generator=generator)
    hidden = torch.randn(n, 8, generator=generator)
    chance = torch.sigmoid(3 * (1 - entropy) + 2 * hidden[:, 0])
    accepted = torch.bernoulli(chance, generator=generator).bool()
    data = rollouts([(1, int(a)) for a in accepted.tolist()], entropy=entropy, hidden=hidden)
    return replace(data, step_prompt=torch.arange(n) % 50)


@pytest.mark.parametrize("width", [0, 8])
def test_scalars_find_what_scalars_tell(width: int) -> None:
    data = learnable()
    part = fit_scalars(data, KEY, width=width, options=QUICK)
    found = part.card["scores"]
    assert found["auc"] > 0.75
    assert found["brier"] < 0.9 * found["brier_of_the_mean"]
    assert found["ece"] < 0.1
    head = loaded(ScalarHead(part.values["width"]), part.tensors)
    calm, wild = torch.tensor([[math.log(0.5), 0.2, 2.0, 1.0], [math.log(0.5), 1.8, 2.0, 1.0]])
    assert head.probability(calm[None]) > head.probability(wild[None]) + 0.3


def test_a_head_over_states_finds_what_only_states_tell(tmp_path) -> None:
    data = learnable()
    part = fit_specdecpp(data, KEY, state="predictor", num_layers=2, options=QUICK)
    blind = fit_scalars(replace(data, entropy=torch.ones(len(data))), KEY, options=QUICK)
    assert part.card["scores"]["auc"] > 0.7 > blind.card["scores"]["auc"]
    assert part.key == {**KEY, "state": "predictor"}
    again = load_artefact(part.save(tmp_path / "head.json"))
    head = ResidualHead(again.values["width"], again.values["num_layers"], shared=again.values["shared"])
    torch.testing.assert_close(loaded(head, again.tensors).temperature, part.tensors["temperature"])
    assert again.card["options"]["epochs"] == QUICK.epochs


def test_a_weight_on_rejections_is_calibrated_away() -> None:
    data = learnable()
    raw = fit_scalars(data, KEY, options=replace(QUICK, reject_weight=6.0, calibrate=False)).card["scores"]
    found = fit_scalars(data, KEY, options=replace(QUICK, reject_weight=6.0)).card["scores"]
    assert raw["temperature"] == 1.0
    assert raw["mean_chance"] < raw["mean_label"] - 0.1  # it doubts too much
    assert abs(found["mean_chance"] - found["mean_label"]) < 0.06
    assert found["brier"] < raw["brier"]


def test_a_seed_is_a_head() -> None:
    data = learnable()
    first, again, other = (
        fit_scalars(data, KEY, options=FitOptions(epochs=1, seed=seed)).tensors["out.weight"] for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
