"""What methods do to the decoder: leave sublayers out, enter late, look inside, branch, train."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.models.decoder import Decoder, Taps, ancestor_mask
from specbench.types import Resume
from tests.models.pairs import decoder_of, filled_cache, library_model, random_ids

LAYERS = 4
EVERY = tuple(range(-1, 2 * LAYERS))


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def models(request: pytest.FixtureRequest) -> tuple[Any, Decoder]:
    biases = {"attention_bias": True, "mlp_bias": True} if request.param == "llama" else {}
    model = library_model(request.param, num_hidden_layers=LAYERS, **biases)
    return model, decoder_of(model)


@pytest.fixture
def decoder(models: tuple[Any, Decoder]) -> Decoder:
    return models[1]


def near(actual: torch.Tensor | None, expected: torch.Tensor | None, atol: float = 1e-4) -> None:
    assert actual is not None
    assert expected is not None
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=atol)


# ---- trees


@st.composite
def trees(draw: st.DrawFn, most: int = 9) -> tuple[int, ...]:
    count = draw(st.integers(1, most))
    return tuple(draw(st.integers(-1, row - 1)) for row in range(count))


def path_to(row: int, parents: tuple[int, ...]) -> list[int]:
    path: list[int] = []
    while row >= 0:
        path.insert(0, row)
        row = parents[row]
    return path


SHAPES = settings(max_examples=15, deadline=None, derandomize=True)
TREE_DECODER = decoder_of(library_model("qwen3"))


def assert_tree_equals_its_paths(parents: tuple[int, ...], context: int) -> None:
    """One tree pass over a cache, against every root-to-node path recomputed from scratch."""
    ids, tree = random_ids(context + 1), random_ids(len(parents), seed=2)
    cache = filled_cache(TREE_DECODER, ids[:, :context], capacity=context + 1 + len(parents))
    mask, depth = ancestor_mask(parents, torch.device("cpu"))
    inputs = torch.cat([ids[:, context:], tree], dim=1)
    out = TREE_DECODER.forward(inputs, cache, start=context, positions=depth + context, mask=mask)
    for row in range(-1, len(parents)):
        alone = torch.cat([ids, tree[:, path_to(row, parents)]], dim=1)
        near(out.logits[:, row + 1], TREE_DECODER.forward(alone).logits[:, -1])


@SHAPES
@given(trees(), st.sampled_from([0, 1, 13]))
def test_tree_equals_a_recompute_of_every_path(parents: tuple[int, ...], context: int) -> None:
    assert_tree_equals_its_paths(parents, context)


def test_tree_of_more_rows_than_the_grouped_layout_takes() -> None:
    assert_tree_equals_its_paths((-1, -1, *range(80)), 7)


@SHAPES
@given(trees(), st.lists(st.booleans(), min_size=9, max_size=9))
def test_kept_path_of_a_tree_decodes_on(parents: tuple[int, ...], coins: list[bool]) -> None:
    """After keep() the cache goes on as if only the accepted path had ever been read."""
    ids, tree = random_ids(6), random_ids(len(parents), seed=2)
    cache = filled_cache(TREE_DECODER, ids[:, :5], capacity=20)
    mask, depth = ancestor_mask(parents, torch.device("cpu"))
    TREE_DECODER.forward(torch.cat([ids[:, 5:], tree], dim=1), cache, start=5, positions=depth + 5, mask=mask)
    leaf = max(row for row in range(-1, len(parents)) if row < 0 or coins[row])
    path = path_to(leaf, parents)
    cache.keep([0, *(row + 1 for row in path)])
    following = random_ids(3, seed=3)
    out = TREE_DECODER.forward(following, cache, start=cache.length)
    whole = torch.cat([ids, tree[:, path], following], dim=1)
    near(out.logits, TREE_DECODER.forward(whole).logits[:, -3:])


def test_ancestors_and_depths_of_a_small_tree() -> None:
    mask, depth = ancestor_mask((-1, 0, -1, 2, 0), torch.device("cpu"))
    seen = [[column for column, visible in enumerate(row) if visible] for row in mask.tolist()]
    assert seen == [[0], [0, 1], [0, 1, 2], [0, 3], [0, 3, 4], [0, 1, 5]]
    assert depth.tolist() == [0, 1, 2, 1, 2, 2]


# ---- a prefix shorter than what was written


@pytest.mark.parametrize("rows", [1, 4, 70])
@pytest.mark.parametrize("prefix", [0, 3, 10])
def test_rows_between_prefix_and_start_are_invisible(decoder: Decoder, prefix: int, rows: int) -> None:
    ids, new = random_ids(10), random_ids(rows, seed=2)
    positions = torch.arange(prefix, prefix + rows)
    cache = filled_cache(decoder, ids, capacity=90)
    out = decoder.forward(new, cache, start=10, prefix=prefix, positions=positions)
    alone = filled_cache(decoder, ids[:, :prefix], capacity=90)
    near(out.logits, decoder.forward(new, alone, start=prefix).logits)


# ---- skip sets


def without_branches(model: Any, skip: set[int]) -> Any:
    """The library's model with the output projections of the skipped branches set to zero."""
    pruned = copy.deepcopy(model)
    for index in skip:
        layer = pruned.model.layers[index // 2]
        projection = layer.mlp.down_proj if index % 2 else layer.self_attn.o_proj
        for parameter in projection.parameters():
            parameter.data.zero_()
    return pruned


SKIPS = [set(), {0}, {1}, {2, 5}, {0, 2, 4, 6}, {1, 3, 5, 7}, {2, 3, 4}, set(range(8))]


@pytest.mark.parametrize("skip", SKIPS, ids=str)
def test_skip_set_equals_a_model_without_those_branches(models: tuple[Any, Decoder], skip: set[int]) -> None:
    model, decoder = models
    ids = random_ids(20)
    with torch.no_grad():
        expected = without_branches(model, skip)(ids).logits
    near(decoder.forward(ids, skip=skip).logits, expected)


@pytest.mark.parametrize("skip", SKIPS, ids=str)
def test_skipped_layers_are_neither_written_nor_read(decoder: Decoder, skip: set[int]) -> None:
    ids = random_ids(20)
    cache = filled_cache(decoder, ids[:, :0], capacity=24)
    parts = []
    for chunk in ids.split((12, 1, 7), dim=1):
        parts.append(decoder.forward(chunk, cache, start=cache.length, skip=skip).logits)
        cache.keep(range(chunk.shape[1]))
    near(torch.cat(parts, dim=1), decoder.forward(ids, skip=skip).logits)
    for index, layer in enumerate(cache.layers):
        for buffer in layer.values():
            assert bool(buffer[:, :20].isnan().any()) == bool(buffer[:, :20].isnan().all()) == (2 * index in skip)
            assert bool(buffer[:, 20:].isnan().all())


# ---- ranges of layers, and entering late


@pytest.mark.parametrize("split", range(LAYERS + 1))
def test_ranges_of_layers_compose(decoder: Decoder, split: int) -> None:
    ids, new = random_ids(8), random_ids(5, seed=2)
    plain = decoder.forward(new, filled_cache(decoder, ids), start=8)
    cache = filled_cache(decoder, ids)
    below = decoder.forward(new, cache, start=8, layers=(0, split), logits="none")
    assert below.logits is None
    above = decoder.forward(below.hidden, cache, start=8, layers=(split, LAYERS))
    near(above.logits, plain.logits)
    near(above.hidden, plain.hidden)


@pytest.mark.parametrize("done", [1, 3, 6])
@pytest.mark.parametrize("layer", [0, 1, 2, LAYERS])
def test_resuming_equals_the_plain_pass(decoder: Decoder, layer: int, done: int) -> None:
    ids, new = random_ids(8), random_ids(6, seed=2)
    plain_cache, cache = filled_cache(decoder, ids), filled_cache(decoder, ids)
    plain = decoder.forward(new, plain_cache, start=8, taps=Taps(EVERY, EVERY))
    early = decoder.forward(new[:, :done], cache, start=8, layers=(0, layer), logits="none")
    out = decoder.forward(new, cache, start=8, resume=Resume(layer, early.hidden[0]), taps=Taps(EVERY, EVERY))
    near(out.logits, plain.logits)
    for ours, theirs in zip(cache.layers, plain_cache.layers, strict=True):
        for name in ours:
            near(ours[name][:, :14], theirs[name][:, :14])
    for index in EVERY:  # below the layer the resumed rows are not seen again
        late = slice(None) if index >= 2 * layer - 1 else slice(done, None)
        if index in out.residuals or done < 6:
            near(out.residuals[index], plain.residuals[index][:, late])
        if index >= 0 and (index in out.sublayer_outputs or done < 6):
            late = slice(None) if index >= 2 * layer else slice(done, None)
            near(out.sublayer_outputs[index], plain.sublayer_outputs[index][:, late])


def test_resuming_with_a_skip_set(decoder: Decoder) -> None:
    ids, new, skip = random_ids(8), random_ids(6, seed=2), {1, 2, 6}
    cache = filled_cache(decoder, ids)
    early = decoder.forward(new[:, :4], cache, start=8, layers=(0, 2), skip=skip, logits="none")
    out = decoder.forward(new, cache, start=8, skip=skip, resume=Resume(2, early.hidden[0]))
    near(out.logits, decoder.forward(new, filled_cache(decoder, ids), start=8, skip=skip).logits)


# ---- taps


def test_taps_are_the_librarys_hidden_states(models: tuple[Any, Decoder]) -> None:
    model, decoder = models
    ids = random_ids(9, batch=2)
    out = decoder.forward(ids, taps=Taps(EVERY, EVERY))
    with torch.no_grad():
        states = model(ids, output_hidden_states=True).hidden_states
    for layer in range(LAYERS):
        near(out.residuals[2 * layer - 1], states[layer])
    near(out.normed, states[LAYERS])
    for index in range(2 * LAYERS):
        near(out.residuals[index], out.residuals[index - 1] + out.sublayer_outputs[index], atol=1e-6)
    near(out.hidden, out.residuals[2 * LAYERS - 1])


def test_only_what_is_asked_for_is_handed_out(decoder: Decoder) -> None:
    out = decoder.forward(random_ids(4), taps=Taps([1], [2]), logits="last")
    assert set(out.residuals) == {1}
    assert set(out.sublayer_outputs) == {2}
    assert out.logits is not None
    assert out.logits.shape[1] == 1


# ---- branches of one sublayer


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize(("batch", "rows"), [(1, 1), (5, 1), (3, 4)])
@pytest.mark.parametrize(("start", "prefix"), [(8, None), (8, 3), (8, 0), (0, None)])
def test_branches_of_a_sublayer_equal_the_forward(
    decoder: Decoder, index: int, batch: int, rows: int, start: int, prefix: int | None
) -> None:
    ids = random_ids(start) if start else random_ids(1)[:, :0]
    hidden = torch.randn(batch, rows, 32, generator=torch.Generator().manual_seed(4))
    positions = torch.arange(start + 5, start + 5 + rows)
    cache = filled_cache(decoder, ids)
    before = [{name: buffer.clone() for name, buffer in layer.items()} for layer in cache.layers]
    found = decoder.sublayer(index, hidden, cache, start, prefix, positions=positions)
    for ours, theirs in zip(cache.layers, before, strict=True):
        assert all(torch.equal(ours[name].nan_to_num(), theirs[name].nan_to_num()) for name in ours)
    layer, other = index // 2, {2 * (index // 2)} if index % 2 else set()
    for branch in range(batch):
        out = decoder.forward(
            hidden[branch : branch + 1],
            cache,
            start=start,
            prefix=prefix,
            positions=positions,
            layers=(layer, layer + 1),
            skip=other,
            taps=Taps((), [index]),
            logits="none",
        )
        near(found[branch], out.sublayer_outputs[index][0])


# ---- training


def test_gradients_are_the_librarys(models: tuple[Any, Decoder]) -> None:
    model = copy.deepcopy(models[0])
    decoder = decoder_of(model)
    trained = [decoder.layers[1].attention.out, decoder.layers[2].mlp.down]
    for linear in trained:
        assert linear.weight is not None
        linear.weight.requires_grad_()
    ids = random_ids(7, batch=3)
    decoder.forward(ids).logits.square().mean().backward()
    model(ids).logits.square().mean().backward()
    expected = [model.model.layers[1].self_attn.o_proj, model.model.layers[2].mlp.down_proj]
    for linear, theirs in zip(trained, expected, strict=True):
        near(linear.weight.grad, theirs.weight.grad)


def test_gradients_reach_hidden_inputs(decoder: Decoder) -> None:
    hidden = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
    decoder.forward(hidden, layers=(1, 3), logits="none").hidden[:, -1].sum().backward()
    assert hidden.grad is not None
    assert bool((hidden.grad.abs().sum(-1) > 0).all())  # causal: the last row depends on all
