"""Reconstruction repairs what conversion broke, touches nothing else, and never makes a layer worse."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from specbench.analysis.stats import bca_interval
from specbench.conversion.calibration import Calibration
from specbench.conversion.files import layer_path, load_layer
from specbench.conversion.functional import (
    FunctionalLoss,
    Pairs,
    Tuning,
    error,
    keys_values,
    learning_rate,
    trained_names,
)
from specbench.conversion.plan import full_names
from specbench.conversion.reconstruct import Reconstruction
from specbench.models.decoder import Decoder
from specbench.models.latent_model import latent_decoder
from tests.conversion.models import base, config, converted, converter, inputs, planned, statistics
from tests.conversion.trained import first_choices, sequences, trained_model

SETTINGS: dict[str, Any] = {"converter": "transmla", "rope_dim": 16, "budget": 0.375}
QUICK: dict[str, Any] = {"updates": 120, "batch": 8, "min_gain": 0.0}


@functools.cache
def calibration() -> Calibration:
    return Calibration(sequences(32, 64, seed=1001), sequences(8, 64, seed=1003), {})


@dataclass(frozen=True)
class Tuned:
    """What a reconstruction left: the model, the converter's layers, and what is known of each."""

    model: Decoder
    start: list[dict[str, Tensor]]
    layers: list[dict[str, Tensor]]
    facts: list[dict[str, Any]]


@functools.cache
def tuned(reconstruction: str, train_params: str = "qkv", stream: str = "frozen", updates: int = 120) -> Tuned:
    """The trained model, converted to a third of its cache."""
    model = trained_model()
    settings = config(
        **SETTINGS,
        reconstruction=reconstruction,
        train_params=train_params,
        reconstruct={**QUICK, "stream": stream, "updates": updates},
    )
    found = converter(model, **SETTINGS)
    found = type(found)(model, settings, statistics(model, calibration().training))
    plan = planned(found)
    spec = converted(found, plan).spec
    start = [
        {name: part.float() if part.is_floating_point() else part for name, part in found.layer(i, plan).items()}
        for i in range(2)
    ]
    run = Reconstruction(
        decoder=model,
        spec=spec,
        config=settings,
        calibration=calibration(),
        converted=lambda layer: start[layer],
        full_rank=lambda layer: found.full_rank(layer, plan),
        folder=Path(mkdtemp(prefix="specbench-tuned-")),
        stored=torch.float32,
    )
    run.run()
    done = [load_layer(layer_path(run.folder, layer)) for layer in range(2)]
    layers = [tensors for tensors, _ in done]
    tensors = {name: t for i, parts in enumerate(layers) for name, t in full_names(i, parts).items()}
    assert spec.mla is not None
    return Tuned(latent_decoder(model, spec.mla, tensors), start, layers, [facts for _, facts in done])


def agreement(model: Decoder) -> np.ndarray[Any, Any]:
    """Share of places [sequences] where the model's first choice is the original's, on text nobody has seen."""
    ids = sequences(40, 64, seed=2002)
    return (first_choices(model, ids) == first_choices(trained_model(), ids)).double().mean(1).numpy()


def gain(one: Decoder, other: Decoder) -> Any:
    return bca_interval(lambda d, axis=-1: np.mean(d, axis=axis), [agreement(one) - agreement(other)])


def test_every_layer_comes_nearer_and_acceptance_rises() -> None:
    none, functional = tuned("none"), tuned("functional")
    for facts in functional.facts:
        assert facts["error_after"] < 0.8 * facts["error_before"]
    assert [f["error_before"] for f in functional.facts] == pytest.approx([f["error_before"] for f in none.facts])
    assert agreement(none.model).mean() < 0.95, "else conversion has broken nothing"
    assert gain(functional.model, none.model).low > 0.0


@pytest.mark.slow
def test_matching_keys_and_values_does_not_do_that() -> None:
    none, kv, functional = tuned("none"), tuned("kv"), tuned("functional")
    assert gain(functional.model, kv.model).low > 0.0
    assert agreement(kv.model).mean() - agreement(none.model).mean() < 0.02


def test_layers_without_tuning_are_the_converters() -> None:
    none = tuned("none")
    for start, layer, facts in zip(none.start, none.layers, none.facts, strict=True):
        assert all(torch.equal(start[name], layer[name]) for name in start)
        assert facts["error_before"] == facts["error_after"] > 0.01


@pytest.mark.parametrize(
    ("reconstruction", "train_params", "left_alone"),
    [
        ("functional", "qkv", set()),
        ("functional", "qk", {"kv_down", "v_up"}),
        ("functional", "qk_down", {"v_up"}),
        ("kv", "qkv", {"q_nope", "q_rope"}),
    ],
)
def test_only_the_named_parts_change(reconstruction: str, train_params: str, left_alone: set[str]) -> None:
    found = tuned(reconstruction, train_params, updates=12)
    for start, layer in zip(found.start, found.layers, strict=True):
        same = {name.partition(".")[0] for name in start if torch.equal(start[name], layer[name])}
        assert same - {"rope_index"} == left_alone | ({"k_rope"} if reconstruction == "kv" else set())


def test_the_rest_of_the_model_is_the_originals() -> None:
    ours, theirs = tuned("functional").model.slots(), trained_model().slots()
    shared = ours.keys() & theirs.keys()
    assert {"model.layers.0.self_attn.o_proj.weight", "model.layers.1.mlp.down_proj.weight"} <= shared
    assert all(torch.equal(ours[name], theirs[name]) for name in shared)
    assert {name.rpartition(".")[0].rpartition(".")[2] for name in theirs.keys() - shared} == {
        "q_proj",
        "k_proj",
        "v_proj",
    }


def test_a_stream_through_converted_layers_works_as_well() -> None:
    found = tuned("functional", stream="converted")
    assert gain(found.model, tuned("none").model).low > 0.0
    frozen = tuned("functional")
    assert torch.equal(frozen.layers[0]["kv_down.weight"], found.layers[0]["kv_down.weight"])
    assert not torch.equal(frozen.layers[1]["kv_down.weight"], found.layers[1]["kv_down.weight"])


# ---- one layer


def tuning(*, rank: int | None = None, rate: float = 1e-3, **changes: Any) -> tuple[Tuning, FunctionalLoss]:
    """Of the first layer of a random model that was converted by svd."""
    model = base("llama", torch.float32)
    found = converter(model, converter="svd")
    latent = converted(found, planned(found, rank))
    attention = latent.layers[0].attention
    x = inputs(model, seed=5)
    data = Pairs(x, model.layers[0].attention(x, model.batch_rows(x), None))
    parts = {n: p.clone() for n, p in attention.parts().items() if not n.startswith("o_proj")}
    loss = FunctionalLoss(attention, model.batch_rows(x))  # type: ignore[arg-type]
    settings = config(reconstruct={"updates": 30, "batch": 2, "learning_rate": rate, **changes}).reconstruct
    names = trained_names(parts, "qkv", "functional")
    return Tuning(loss, data, data, parts, names, settings, 0), loss


def test_what_loses_nothing_stays_as_it_is() -> None:
    run, _ = tuning(rank=32)
    start = run.start
    best = run.run()
    assert run.curve[0] < 1e-9
    assert all(best[name] is start[name] for name in start)


def test_a_rate_that_ruins_everything_keeps_the_start() -> None:
    run, loss = tuning(rank=8, rate=1e3)
    start = run.start
    best = run.run()
    assert all(best[name] is start[name] for name in start)
    assert error(loss, best, run.held_out, 2) == run.curve[0]


def test_the_best_of_all_checks_is_kept() -> None:
    run, loss = tuning(rank=8, min_gain=0.0)
    best = run.run()
    assert len(run.curve) == 6
    assert error(loss, best, run.held_out, 2) == pytest.approx(min(run.curve))
    assert min(run.curve) < 0.8 * run.curve[0]


def test_a_layer_that_stopped_improving_ends_early() -> None:
    run, _ = tuning(rank=8, rate=0.0)
    run.run()
    assert run.updates == 18
    assert len(run.curve) == 4


def test_the_same_seed_is_the_same_layer() -> None:
    first, again, other = (tuning(rank=8, seed=seed)[0] for seed in (1, 1, 2))
    weights = [run.run()["kv_down.weight"] for run in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    first.settings.batch = 1
    assert [part.tolist() for part in first._order()] != [part.tolist() for part in other._order()]


def test_rates_follow_the_hidden_size_unless_given() -> None:
    settings = config().reconstruct
    assert [learning_rate(settings, size) for size in (64, 576, 1152, 2304)] == [4e-3, 4e-3, 2e-3, 1e-3]
    assert learning_rate(config(reconstruct={"learning_rate": 0.5}).reconstruct, 64) == 0.5


def test_keys_and_values_are_read_from_the_parts() -> None:
    parts = {"kv_down.weight": torch.ones(1, 2), "v_up.weight": torch.full((3, 1), 2.0), "v_up.bias": torch.ones(3)}
    (values,) = keys_values(parts, torch.ones(1, 1, 2))
    assert values.tolist() == [[[5.0, 5.0, 5.0]]]
