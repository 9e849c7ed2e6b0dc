"""CLaSp: the dynamic program against a plain one, exact counts, the reference token, and when it searches."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.controllers.confidence import ConfidenceStop
from specbench.controllers.fixed import FixedLength
from specbench.methods import clasp as clasp_module
from specbench.methods.build import build_generator
from specbench.methods.clasp import Clasp
from specbench.methods.layer_dp import choose_layers
from specbench.methods.layer_skip import layers_to_sublayers
from specbench.models.decoder import Decoder, Taps
from specbench.models.kv_cache import KVCache
from specbench.models.tiny import SPEC, target_weights
from specbench.types import ConfigError
from tests.composed import composed
from tests.decoding.tinies import PROMPT, ar_tokens, check_every_step, decode, fresh_cache, loaded, tiny_target

TOKENS = (*PROMPT, 99, 115, 7)
LAYERS = SPEC.num_layers
AFTER_LAYERS = range(-1, 2 * LAYERS, 2)


def states_of(decoder: Decoder, tokens: tuple[int, ...]) -> Tensor:
    """The last token's residual stream after every layer, the embedding first: one pass without a cache."""
    out = decoder.forward(torch.tensor([tokens]), taps=Taps(residuals=AFTER_LAYERS), logits="none")
    return torch.stack([out.residuals[index][0, -1] for index in AFTER_LAYERS])


def cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a, b, dim=0))


def one_layer(decoder: Decoder, cache: KVCache, layer: int, state: Tensor) -> Tensor:
    """`state` after one layer, at the last position of a cache that may be spoilt."""
    out = decoder.forward(state[None, None], cache, start=cache.length - 1, layers=(layer, layer + 1), logits="none")
    return out.hidden[0, 0]


def plain_search(decoder: Decoder, cache: KVCache, full: Tensor, count: int) -> tuple[int, ...]:
    """The same program cell by cell, each cell carrying its own list of skipped layers."""
    cells: dict[int, tuple[Tensor, tuple[int, ...]]] = {0: (full[0], ())}
    for i in range(1, LAYERS + 1):
        following = {0: (full[i], ())}
        for j in range(1, min(i, count) + 1):
            state, path = cells[j - 1]
            following[j] = (state, (*path, i - 1))
            if j in cells:
                run = one_layer(decoder, copy.deepcopy(cache), i - 1, cells[j][0])
                if cosine(run, full[i]) > cosine(state, full[i]):
                    following[j] = (run, cells[j][1])
        cells = following
    return cells[count][1]


@pytest.fixture(params=["plain", "zero"])
def setting(request: pytest.FixtureRequest) -> tuple[Decoder, KVCache, Tensor]:
    decoder = tiny_target(request.param)
    with torch.inference_mode():
        return decoder, fresh_cache(decoder, TOKENS), states_of(decoder, TOKENS)


@pytest.mark.parametrize("count", range(1, LAYERS))
def test_the_search_is_the_plain_program(setting: tuple[Decoder, KVCache, Tensor], count: int) -> None:
    decoder, cache, full = setting
    with torch.inference_mode():
        assert choose_layers(decoder, cache, full, count).layers == plain_search(decoder, cache, full, count)


@pytest.mark.parametrize("count", range(1, LAYERS))
def test_the_paths_end_is_what_the_smaller_network_computes(
    setting: tuple[Decoder, KVCache, Tensor], count: int
) -> None:
    decoder, cache, full = setting
    with torch.inference_mode():
        found = choose_layers(decoder, cache, full, count)
        out = decoder.forward(
            torch.tensor([TOKENS[-1:]]),
            copy.deepcopy(cache),
            start=cache.length - 1,
            skip=layers_to_sublayers(found.layers),
        )
    assert len(found.layers) == len(set(found.layers)) == count
    assert found.cosine == pytest.approx(cosine(out.hidden[0, 0], full[-1]), abs=1e-5)


def test_a_search_leaves_the_cache_alone(setting: tuple[Decoder, KVCache, Tensor]) -> None:
    decoder, cache, full = setting
    before = copy.deepcopy(cache)
    with torch.inference_mode():
        choose_layers(decoder, cache, full, 3)
    assert cache.length == before.length
    for ours, theirs in zip(cache.layers, before.layers, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def with_useless(*layers: int) -> Decoder:
    """The tiny target with layers that add nothing."""
    weights = target_weights()
    for layer in layers:
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            weights[f"model.layers.{layer}.{name}.weight"].zero_()
    return loaded(SPEC, weights)


@pytest.mark.parametrize("useless", range(LAYERS))
def test_a_layer_that_does_nothing_is_the_one_left_out(useless: int) -> None:
    decoder = with_useless(useless)
    with torch.inference_mode():
        found = choose_layers(decoder, fresh_cache(decoder, TOKENS), states_of(decoder, TOKENS), 1)
    assert found.layers == (useless,)  # the first and the last layer too
    assert found.cosine == pytest.approx(1.0, abs=1e-6)


def test_equal_cosines_prefer_skipping() -> None:
    decoder = with_useless(2, 3)
    with torch.inference_mode():
        found = choose_layers(decoder, fresh_cache(decoder, TOKENS), states_of(decoder, TOKENS), 1)
    assert found.layers == (3,)  # running 3 after skipping 2 gives the same state bit for bit


# ---- the drafter


def drafter(**changes: Any) -> Clasp:
    return Clasp(FixedLength(3), **({"num_skip_layers": 2, "optimize_interval": 6} | changes))


def run(built: Clasp, count: int = 40, **changes: Any) -> Any:
    generator = check_every_step(decode(built))
    return generator.generate(PROMPT, max_new_tokens=count, seed=0, **changes)


def skipped_layers(record: Any) -> int:
    return len(record.values["sublayers"]) // 2


@pytest.mark.parametrize("count", range(1, LAYERS))
def test_answers_are_ars_and_exactly_so_many_layers_are_skipped(count: int) -> None:
    found = run(drafter(num_skip_layers=count))
    assert found.tokens == ar_tokens(40)
    assert len(found.choices) >= 2
    assert {skipped_layers(record) for record in found.choices} == {count}
    assert all(record.values["num_attention_skipped"] == count for record in found.choices)


def test_it_searches_after_steps_one_and_one_plus_the_interval() -> None:
    found = run(drafter())
    last = found.steps[-1].step
    assert [record.step for record in found.choices] == list(range(1, last, 6))
    assert all(record.values["search_s"] > 0 for record in found.choices)


def test_plain_steps_come_before_the_first_set() -> None:
    steps = run(drafter()).steps
    assert [step.num_draft_tokens for step in steps[:3]] == [0, 0, 3]


def test_the_whole_model_may_draft_before_the_first_set() -> None:
    found = run(drafter(before_first_set="full_model"))
    assert [step.num_draft_tokens for step in found.steps[:3]] == [0, 3, 3]
    assert found.steps[1].num_accepted == 3
    assert found.choices[0].values["sublayers"] == []
    assert found.choices[1].values["measured_acceptance"] == 1.0


def test_the_reference_is_the_last_token_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    built, accepted = drafter(optimize_interval=3), []

    def checked(decoder: Decoder, cache: KVCache, states: Tensor, count: int) -> Any:
        committed = built.request.committed
        assert cache.length == len(committed) - 1
        torch.testing.assert_close(states, states_of(decoder, tuple(committed[:-1])), atol=2e-4, rtol=1e-3)
        return choose_layers(decoder, cache, states, count)

    monkeypatch.setattr(clasp_module, "choose_layers", checked)
    found = run(built)
    accepted = [found.steps[record.step].num_accepted for record in found.choices]
    assert max(accepted) > 0  # the reference was a drafted token at times
    assert found.tokens == ar_tokens(40)


def test_no_search_follows_the_end() -> None:
    answer = ar_tokens(40)
    found = run(drafter(optimize_interval=2), stop_ids=[answer[4]])
    assert max(record.step for record in found.choices) < found.steps[-1].step
    found = run(drafter(), count=2)  # step 1 is due, and the last
    assert found.choices == ()


def test_a_set_lives_as_long_as_it_should() -> None:
    keeps, forgets = drafter(), drafter(carry_over=False)
    for built in (keeps, forgets):
        run(built)
    again = [run(built) for built in (keeps, forgets)]
    assert [found.steps[1].num_draft_tokens for found in again] == [3, 0]
    assert again[0].choices[0].values["reason"] == "carried_over"
    keeps.reset()
    assert run(keeps).steps[1].num_draft_tokens == 0


def test_a_doubted_token_is_kept_and_verified() -> None:
    built = Clasp(ConfidenceStop(10, threshold=1.0), num_skip_layers=2)
    steps = run(built).steps
    assert {step.num_draft_tokens for step in steps[2:-1]} == {1}


# ---- the configuration


def built_from(*words: str) -> Any:
    config = composed("model=tiny", "method=clasp", *words).method
    parts = SimpleNamespace(target=SimpleNamespace(decoder=tiny_target()), sampling=None, timer=None, model_hash=None)
    return build_generator(config, parts).drafter  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "count"), [((), 2), (("method.skip_share=0.5",), 3), (("method.num_skip_layers=5",), 5)]
)
def test_how_many_layers(words: tuple[str, ...], count: int) -> None:
    assert built_from(*words).num_skip_layers == count


def test_too_many_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_skip_layers=6: must be from 1 to 5"):
        built_from("method.num_skip_layers=6")


def test_an_interval_that_never_fires_is_refused() -> None:
    with pytest.raises(ConfigError, match="optimize_interval=1"):
        composed("method=clasp", "method.optimize_interval=1")


def test_a_given_set_is_used_without_a_search() -> None:
    built = built_from("method.skip_set=[2,3,8]")
    assert built.skip == {2, 3, 8}
    assert not built.searches
    found = decode(built).generate(PROMPT, max_new_tokens=20, seed=0)
    assert found.tokens == ar_tokens(20)
    assert found.steps[0].num_draft_tokens > 0
