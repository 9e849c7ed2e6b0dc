"""What each converter chooses, what it refuses, and how ranks follow from the budget."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.conversion import mha2mla, transmla
from specbench.conversion.budget import Elements
from specbench.conversion.layer import Projection, attention_weights
from specbench.conversion.plan import Converter
from specbench.conversion.ranks import water_fill
from specbench.conversion.statistics import LayerStatistics
from specbench.types import ConfigError, ModelError
from tests.composed import composed
from tests.conversion.models import base, config, converted, converter, planned, statistics

# Cached numbers a token and layer of the models that the issue of ranks is about: D, K, d, and the two ranks.
PUBLISHED = {
    "SmolLM2-135M": (576, 3, 64, 128, 144),
    "SmolLM2-360M": (960, 5, 64, 256, 240),
    "Qwen2.5-0.5B": (896, 2, 64, 64, 96),
    "Qwen2.5-1.5B": (1536, 2, 128, 192, 192),
    "Llama-3.2-1B": (2048, 8, 64, 448, 384),
    "Llama-3.2-3B": (3072, 8, 128, 960, 768),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_half_the_cache_gives_these_ranks(name: str) -> None:
    hidden, heads, width, merged, partial = PUBLISHED[name]
    limit = min(hidden, 2 * heads * width - 64)
    assert Elements(2 * heads * width, 64, limit).rank(0.5) == merged
    assert transmla.default_rope_dim(width) == 64
    rotated = mha2mla.default_rope_dim(width)
    assert rotated == width // 4
    limit = min(hidden, heads * (2 * width - rotated))
    assert Elements(2 * heads * width, heads * rotated, limit).rank(0.5) == partial


def test_a_budget_that_the_rotated_keys_fill_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"method\.budget=0\.25: 64 of 256 .* above 0\.25; or set method\.rope_dim"):
        Elements(256, 64, 192).rank(0.25)


def test_a_rank_beyond_exact_is_refused_and_a_budget_stops_there() -> None:
    elements = Elements(64, 8, 32)
    assert elements.rank(1.0) == 32
    assert elements.checked(32) == 32
    with pytest.raises(ConfigError, match=r"method\.rank=33: .* 1 to 32"):
        elements.checked(33)


def test_scales_of_a_normed_key_count_against_the_budget() -> None:
    model = base("qwen3")
    found = converter(model, converter="mha2mla", rope_dim=4)
    plan = planned(found)
    latent = converted(found, plan)
    assert latent.new_cache(1).nbytes() == pytest.approx(0.5 * model.new_cache(1).nbytes(), rel=0.01)
    assert plan.ranks[0] == 32 - 2 * 4 - 2


def sizes(queries: Tensor, keys: Tensor) -> LayerStatistics:
    return LayerStatistics(torch.eye(1), torch.zeros(1), queries, keys)


def test_2norm_takes_the_pairs_whose_queries_and_keys_are_large_together() -> None:
    weights = dataclasses.replace(attention_weights(base("llama"), 0))
    queries, keys = torch.ones(4, 4), torch.ones(2, 4)
    queries[1, 2] = 9.0  # one head of the first group
    keys[1, 0] = 5.0
    queries[2, 3] = queries[3, 3] = 4.0
    chosen = mha2mla.select_pairs(weights, sizes(queries, keys), count=2, select="2norm")
    assert chosen[0].tolist() == [0, 2]  # of equals the first
    assert chosen[1].tolist() == [0, 3]


@pytest.mark.parametrize(("select", "places"), [("high", [0, 1]), ("low", [2, 3]), ("uniform", [0, 2])])
def test_other_selectors_go_by_frequency(select: str, places: list[int]) -> None:
    weights = attention_weights(base("llama"), 0)
    chosen = mha2mla.select_pairs(weights, sizes(torch.ones(4, 4), torch.ones(2, 4)), count=2, select=select)
    assert chosen.tolist() == [places, places]


def test_first_virtual_head_carries_most_of_every_frequency() -> None:
    model = base("llama")
    found = statistics(model)[0]
    weights = attention_weights(model, 0)
    split = transmla.split(weights, found, rope_dim=8, freqfold=1)
    pairs = found.output_moment(split.k_rope).diagonal().view(2, 4).sum(0)
    best = found.output_moment(weights.k).diagonal().view(2, 2, 4).sum(1).max(0).values
    assert (pairs >= best - 1e-12).all()
    everything = torch.cat([split.k_rope.weight, split.k_nope.weight])
    torch.testing.assert_close(everything.T @ everything, weights.k.weight.T @ weights.k.weight)


def test_collapsed_frequencies_index_the_models_own() -> None:
    model = base("llama", hidden_size=64, num_attention_heads=4, head_dim=16)
    split = transmla.split(attention_weights(model, 0), statistics(model)[0], rope_dim=4, freqfold=8)
    assert split.rope_index.tolist() == [[0, 4]]
    split = transmla.split(attention_weights(model, 0), statistics(model)[0], rope_dim=8, freqfold=4)
    assert split.rope_index.tolist() == [[0, 2, 4, 6]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_dim": 18}, r"method\.rope_dim=18: legal .* transmla: 2, 4, 6, 8"),
        ({"rope_dim": 8, "freqfold": 3}, r"method\.freqfold=3: legal .*: auto, 1, 2, 4"),
        ({"rope_dim": 4, "freqfold": 1}, r"method\.freqfold=1: legal .*: auto, 2, 4"),
    ],
)
def test_transmla_names_what_fits(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        planned(converter(base("llama"), converter="transmla", **changes))


def test_mha2mla_names_what_fits() -> None:
    with pytest.raises(ConfigError, match=r"method\.rope_dim=10: .* even numbers from 2 to 8"):
        planned(converter(base("llama"), converter="mha2mla", rope_dim=10))


@pytest.mark.parametrize("freqfold", [1, "auto"])
def test_transmla_refuses_keys_that_are_normed_by_head(freqfold: int | str) -> None:
    with pytest.raises(
        ConfigError, match=r"method\.converter=transmla: .*q/k norm.* legal for this model: mha2mla, svd"
    ):
        planned(converter(base("qwen3"), converter="transmla", freqfold=freqfold))


def test_a_latent_model_is_not_converted_again() -> None:
    found = converter(base("llama"), converter="svd")
    with pytest.raises(ModelError, match="latent already"):
        attention_weights(converted(found, planned(found)), 0)


def test_two_latents_need_room_for_both() -> None:
    found = converter(base("llama"), converter="mha2mla", latent="only_key")
    plan = planned(found, 8)
    with pytest.raises(ConfigError, match=r"method\.latent=only_key: a rank of 8 leaves no room"):
        found.layer(0, plan)


def test_folding_is_doubled_while_held_out_perplexity_falls() -> None:
    answers = iter([9.0, 7.0, 8.0])

    def perplexity(spec: Any, tensors: dict[str, Tensor]) -> float:
        assert len(tensors) == 2 * 7, "all layers are there"
        return next(answers)

    model = base("llama", hidden_size=64, num_attention_heads=4, head_dim=16)
    found = Converter(model, config(converter="transmla", freqfold="auto", rope_dim=16), statistics(model))
    plan = found.plan(perplexity)
    assert (plan.freqfold, plan.trials) == (2, {"1": 9.0, "2": 7.0, "4": 8.0})


# ---- ranks by layer


def test_ranks_go_where_few_directions_are_left_and_the_sum_stays() -> None:
    flat, steep = torch.ones(64, dtype=torch.float64), 0.5 ** torch.arange(64, dtype=torch.float64)
    ranks = water_fill([flat, steep, steep], 16)
    assert sum(ranks) == 48
    assert all(rank % 8 == 0 for rank in ranks)
    assert ranks[0] == 8 < max(ranks) <= 32


def test_small_layers_are_not_rounded_away() -> None:
    spectrum = 0.9 ** torch.arange(40, dtype=torch.float64)
    ranks = water_fill([spectrum, spectrum[:5]], 6)
    assert sum(ranks) == 12
    assert min(ranks) >= 3
    assert ranks[1] <= 5


def test_each_rank_goes_where_the_largest_share_is_left() -> None:
    a = torch.tensor([8.0, 4.0, 2.0, 1.0], dtype=torch.float64)
    b = torch.tensor([9.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    assert water_fill([a, b], 2) == [3, 1]  # 4/7 and 2/3 of a against 1/3 of b


def test_layers_too_small_for_the_sum_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot hold 12"):
        water_fill([torch.ones(3), torch.ones(3)], 6)


def test_care_gives_layers_ranks_of_their_own_within_the_budget() -> None:
    model = base("llama", hidden_size=64, num_attention_heads=4, num_key_value_heads=4, head_dim=16)
    uniform = planned(converter(model, converter="mha2mla")).ranks
    found = converter(model, converter="care", factor=None, ranks=None)
    assert (found.config.converter, found.config.factor, found.config.ranks) == ("mha2mla", "whitened", "care")
    ranks = planned(found).ranks
    assert sum(ranks) == sum(uniform)
    assert converted(found, planned(found)).spec.mla is not None


# ---- the configuration


def words(*more: str) -> Any:
    return composed("model=tiny", "method=mla", *more).method


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"converter": "transmlaa"}, r"method\.converter=transmlaa: .*did you mean 'transmla'"),
        ({"budget": 0.0}, r"method\.budget=0.*above 0 and at most 1"),
        ({"rope_dim": 5}, r"method\.rope_dim=5: must be even"),
        ({"freqfold": "often"}, r"method\.freqfold=often: must be a number"),
        ({"balance": 0.0}, r"method\.balance=0.0: must be above 0"),
        ({"train_params": "kv"}, r"method\.train_params=kv: .*qkv, qk, qk_down"),
        ({"reconstruct": {"stream": "correct"}}, r"method\.reconstruct\.stream=correct: .*frozen, converted"),
        ({"calibration": {"sources": ["humaneval"]}}, r"method\.calibration\.sources=humaneval: .*gsm8k"),
        ({"calibration": {"held_out": 0}}, r"method\.calibration\.held_out=0: must be 1 or more"),
        ({"ranks": "care", "latent": "split"}, r"method\.latent=split: method\.ranks=care needs one latent"),
        (
            {"converter": "care", "ranks": None, "factor": "svd"},
            r"method\.factor=svd: method\.converter=care means method\.factor=whitened",
        ),
    ],
)
def test_bad_values_name_key_and_legal_ones(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**changes)


def test_the_command_line_says_care_and_none_for_whole_sets_of_keys() -> None:
    care = words("method.converter=care")
    assert (care.converter, care.factor, care.ranks) == ("mha2mla", "whitened", "care")
    plain = words("method.converter=none", "method.budget=0.25", "method.reconstruction=kv", "method.ranks=care")
    assert plain == config(converter="none", freqfold="auto")
    with pytest.raises(ConfigError, match=r"method\.budget=2"):
        words("method.budget=2")


def test_tuning_says_nothing_where_nothing_is_tuned() -> None:
    """One conversion has one config, and its numbers are the defaults of conf/method/mla.yaml."""
    told = ("method.reconstruct.learning_rate=0.1", "method.reconstruct.updates=7", "method.train_params=qk")
    for arm in ("method.reconstruction=none", "method.converter=none"):
        assert words(arm, *told) == words(arm)
        assert words(arm).reconstruct == words().reconstruct
    assert words(*told).reconstruct.updates == 7


def test_a_projection_gives_rows_by_number_and_by_mix() -> None:
    found = Projection(torch.eye(3), torch.arange(3.0))
    torch.testing.assert_close(found.take(torch.tensor([2, 0]))(torch.ones(3)), torch.tensor([3.0, 1.0]))
    torch.testing.assert_close(found.take(torch.ones(1, 3))(torch.ones(3)), torch.tensor([6.0]))
