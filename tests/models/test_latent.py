"""Latent attention: the written-out formula, both forms of it, and everything that methods do to a decoder."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.models.decoder import Decoder, Taps, ancestor_mask
from specbench.models.latent import LatentAttention
from specbench.models.latent_model import latent_decoder
from specbench.types import Resume
from tests.models.latents import (
    FORMS,
    SPLIT,
    attention_of,
    decode,
    latent_model,
    latent_spec,
    near,
    random_states,
    random_tensors,
    written_out,
)
from tests.models.pairs import decoder_of, filled_cache, library_model, random_ids

model = functools.cache(latent_model)


@pytest.fixture(params=FORMS)
def decoder(request: pytest.FixtureRequest) -> Decoder:
    return model(request.param)


# ---- what it computes


@pytest.mark.parametrize("layer", [0, 1])
def test_attention_is_the_written_out_formula(decoder: Decoder, layer: int) -> None:
    x = random_states(11, batch=2)
    found = attention_of(decoder, layer)(x, decoder.batch_rows(x), None)
    expected = torch.stack([written_out(decoder, layer, one) for one in x])
    assert float(expected.std()) > 0.05
    near(found, expected, atol=2e-6)  # rotary tables come from angles in float32, as the library's do


def attend_in_chunks(decoder: Decoder, x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Output of the first layer's attention for states x [1, T, d] read in chunks through a cache."""
    cache, outputs = decoder.new_cache(x.shape[1]), []
    for chunk in x.split(sizes, dim=1):
        tap = Taps((), [0])
        out = decoder.forward(
            chunk, cache, start=cache.length, layers=(0, 1), skip={1}, taps=tap, logits="none"
        ).sublayer_outputs[0]
        cache.keep(range(chunk.shape[1]))
        outputs.append(out)
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize("form", SPLIT)
@pytest.mark.parametrize("sizes", [(1,) * 12, (8, 1, 3), (3, 8, 1, 70)], ids=str)
def test_absorbed_equals_expanded(form: str, sizes: tuple[int, ...]) -> None:
    absorbed = latent_model(form, absorb_rows=100)
    expanded = latent_model(form, absorb_rows=0)
    x = random_states(sum(sizes))
    found = attend_in_chunks(absorbed, x, sizes)
    expected = attend_in_chunks(expanded, x, sizes)
    assert float((found - expected).norm() / expected.norm()) < 1e-12
    assert not torch.equal(found, expected)  # two ways to compute it, not one


def test_few_rows_are_absorbed_and_many_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = latent_model("one rope head", absorb_rows=4)
    asked: list[tuple[str, int]] = []
    for name in ("_absorbed", "_expanded"):
        plain = getattr(LatentAttention, name)

        def noting(self: Any, q: Tensor, *rest: Any, plain: Any = plain, name: str = name) -> Tensor:
            asked.append((name, q.shape[1]))
            return plain(self, q, *rest)

        monkeypatch.setattr(LatentAttention, name, noting)
    attend_in_chunks(decoder, random_states(11), (1, 4, 5, 1))
    assert asked == [("_absorbed", 1), ("_absorbed", 4), ("_expanded", 5), ("_absorbed", 1)]


def as_latent(base: Decoder, form: str) -> Decoder:
    """The same function in latent form at full rank: keys and values are read out of a latent that holds them all."""
    spec = base.spec
    width, kv = spec.head_dim, spec.num_kv_heads * spec.head_dim
    svd = form == "svd"
    mla = latent_spec(
        spec,
        form=form,
        ranks=((2 * kv if svd else kv),) * spec.num_layers,
        key_heads=spec.num_kv_heads,
        qk_norm="exact" if spec.qk_norm else "none",
        bias_mode="latent" if spec.qkv_bias else "none",
        **({} if svd else {"rope_heads": spec.num_kv_heads, "rope_dim": width, "nope_dim": 0}),
    )
    read = torch.eye(kv).view(spec.num_kv_heads, width, kv).repeat_interleave(spec.num_heads // spec.num_kv_heads, 0)
    read = read.flatten(0, 1).double()
    tensors: dict[str, Tensor] = {}
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}.self_attn."
        held = base.layers[layer].attention.slots("")
        for suffix in ("weight", "bias") if spec.qkv_bias else ("weight",):
            q, k, v = (held[f"{name}_proj.{suffix}"] for name in "qkv")
            if svd:
                tensors |= {f"{prefix}q_proj.{suffix}": q, f"{prefix}kv_down.{suffix}": torch.cat([k, v])}
            else:
                tensors |= {f"{prefix}q_rope.{suffix}": q, f"{prefix}k_rope.{suffix}": k}
                tensors[f"{prefix}kv_down.{suffix}"] = v
        if svd:
            tensors[f"{prefix}k_up.weight"] = torch.cat([torch.eye(kv), torch.zeros(kv, kv)], -1).double()
            tensors[f"{prefix}v_up.weight"] = torch.cat([torch.zeros_like(read), read], -1)
        else:
            tensors[f"{prefix}v_up.weight"] = read
            tensors[f"{prefix}rope_index"] = torch.arange(width // 2).repeat(spec.num_kv_heads, 1)
    return latent_decoder(base, mla, tensors)


@pytest.mark.parametrize("form", ["split", "svd"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_grouped_query_attention_is_a_special_case(family: str, form: str) -> None:
    base = decoder_of(
        library_model(family, attention_bias=True) if family == "llama" else library_model(family), dtype=torch.float64
    )
    latent = as_latent(base, form)
    ids = random_ids(30)
    near(latent.forward(ids).logits, base.forward(ids).logits)
    cache = filled_cache(latent, ids[:, :20])
    near(latent.forward(ids[:, 20:24], cache, start=20).logits, base.forward(ids).logits[:, 20:24])


def test_what_is_not_converted_is_shared_with_the_base() -> None:
    base = decoder_of(library_model("llama"))
    mla = latent_spec(base.spec)
    latent = latent_decoder(base, mla, random_tensors(base, mla))
    assert latent.embedding is base.embedding
    assert latent.head is base.head
    for ours, theirs in zip(latent.layers, base.layers, strict=True):
        assert ours.mlp is theirs.mlp
        assert ours.norms is theirs.norms
        assert ours.attention.out is theirs.attention.out
        assert not isinstance(theirs.attention, LatentAttention)
    assert base.spec.mla is None


# ---- through a cache


@pytest.mark.parametrize("sizes", [(1,) * 40, (17, 1, 1, 5, 9, 7), (40,), (4, 36)], ids=str)
def test_cached_decoding_equals_the_whole_pass(decoder: Decoder, sizes: tuple[int, ...]) -> None:
    ids = random_ids(40)
    near(decode(decoder, ids, sizes), decoder.forward(ids).logits)


def test_truncated_cache_decodes_on_as_if_nothing_had_been_there(decoder: Decoder) -> None:
    ids, wrong = random_ids(30), random_ids(6, seed=9)
    cache = filled_cache(decoder, ids[:, :20])
    decoder.forward(wrong, cache, start=20)
    cache.keep(range(6))
    cache.truncate(18)
    parts = []
    for token in ids[:, 18:].split(1, dim=1):
        parts.append(decoder.forward(token, cache, start=cache.length).logits)
        cache.keep([0])
    near(torch.cat([part for part in parts if part is not None], 1), decoder.forward(ids).logits[:, 18:])


@pytest.mark.parametrize("rows", [1, 4, 70])
@pytest.mark.parametrize("prefix", [0, 3, 10])
def test_rows_between_prefix_and_start_are_invisible(decoder: Decoder, prefix: int, rows: int) -> None:
    ids, new = random_ids(10), random_ids(rows, seed=2)
    cache = filled_cache(decoder, ids)
    positions = torch.arange(prefix, prefix + rows)
    out = decoder.forward(new, cache, start=10, prefix=prefix, positions=positions)
    alone = filled_cache(decoder, ids[:, :prefix])
    near(out.logits, decoder.forward(new, alone, start=prefix).logits)


PARENTS = [(-1, 0, -1, 2, 0), (-1, -1, -1), (-1, 0, 1, 2, 3, 4, 4, 1, 0, -1)]


@pytest.mark.parametrize("parents", PARENTS, ids=str)
@pytest.mark.parametrize("context", [0, 13])
def test_tree_equals_a_recompute_of_every_path(decoder: Decoder, parents: tuple[int, ...], context: int) -> None:
    ids, tree = random_ids(context + 1), random_ids(len(parents), seed=2)
    cache = filled_cache(decoder, ids[:, :context])
    mask, depth = ancestor_mask(parents, torch.device("cpu"))
    inputs = torch.cat([ids[:, context:], tree], dim=1)
    out = decoder.forward(inputs, cache, start=context, positions=depth + context, mask=mask)
    path: list[int] = []
    for row in range(-1, len(parents)):
        path, node = [], row
        while node >= 0:
            path.insert(0, node)
            node = parents[node]
        assert out.logits is not None
        near(out.logits[:, row + 1], decoder.forward(torch.cat([ids, tree[:, path]], dim=1)).logits[:, -1])
    cache.keep([0, *(node + 1 for node in path)])  # the last path goes on
    following = random_ids(3, seed=3)
    whole = torch.cat([ids, tree[:, path], following], dim=1)
    near(decoder.forward(following, cache, start=cache.length).logits, decoder.forward(whole).logits[:, -3:])


@pytest.mark.parametrize("skip", [{0}, {1}, {2}, {0, 3}], ids=str)
def test_skipped_layers_are_neither_written_nor_read(decoder: Decoder, skip: set[int]) -> None:
    ids = random_ids(20)
    cache = filled_cache(decoder, ids[:, :0])
    parts = []
    for chunk in ids.split((12, 1, 7), dim=1):
        parts.append(decoder.forward(chunk, cache, start=cache.length, skip=skip).logits)
        cache.keep(range(chunk.shape[1]))
    near(torch.cat([part for part in parts if part is not None], dim=1), decoder.forward(ids, skip=skip).logits)
    for index, layer in enumerate(cache.layers):
        for buffer in layer.values():
            assert bool(buffer[:, :20].isnan().all()) == bool(buffer[:, :20].isnan().any()) == (2 * index in skip)


@pytest.mark.parametrize("done", [1, 3])
def test_resuming_equals_the_plain_pass(decoder: Decoder, done: int) -> None:
    ids, new = random_ids(8), random_ids(6, seed=2)
    plain = decoder.forward(new, filled_cache(decoder, ids), start=8, taps=Taps([1, 3], [0, 2]))
    cache = filled_cache(decoder, ids)
    early = decoder.forward(new[:, :done], cache, start=8, layers=(0, 1), logits="none")
    out = decoder.forward(new, cache, start=8, resume=Resume(1, early.hidden[0]), taps=Taps([3], [2]))
    near(out.logits, plain.logits)
    near(out.sublayer_outputs[2], plain.sublayer_outputs[2])
    near(out.residuals[3], plain.residuals[3])


@pytest.mark.parametrize(("batch", "rows"), [(1, 1), (5, 1), (3, 4)])
@pytest.mark.parametrize(("start", "prefix"), [(8, None), (8, 3), (8, 0), (0, None)])
def test_branches_of_a_sublayer_equal_the_forward(
    decoder: Decoder, batch: int, rows: int, start: int, prefix: int | None
) -> None:
    ids = random_ids(start) if start else random_ids(1)[:, :0]
    hidden = random_states(rows, batch=batch)
    positions = torch.arange(start + 5, start + 5 + rows)
    cache = filled_cache(decoder, ids)
    before = [{name: buffer.clone() for name, buffer in layer.items()} for layer in cache.layers]
    found = decoder.sublayer(2, hidden, cache, start, prefix, positions=positions)
    for ours, theirs in zip(cache.layers, before, strict=True):
        assert all(torch.equal(ours[name].nan_to_num(), theirs[name].nan_to_num()) for name in ours)
    for branch in range(batch):
        taps = Taps((), [2])
        out = decoder.forward(
            hidden[branch : branch + 1],
            cache,
            start=start,
            prefix=prefix,
            positions=positions,
            layers=(1, 2),
            taps=taps,
            logits="none",
        )
        near(found[branch], out.sublayer_outputs[2][0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cache_holds_latent_and_rotated_keys_only(decoder: Decoder, dtype: torch.dtype) -> None:
    decoder = latent_decoder_in(decoder, dtype)
    spec, mla = decoder.spec, decoder.spec.mla
    assert mla is not None
    per_token = sum(rank + mla.rope_heads * mla.rope_dim for rank in mla.ranks)
    if mla.qk_norm == "exact" and mla.form == "split":
        per_token += spec.num_layers * spec.num_kv_heads
    cache = decoder.new_cache(17)
    held = sum(buffer.untyped_storage().nbytes() for layer in cache.layers for buffer in layer.values())
    assert held == cache.nbytes() == 17 * per_token * dtype.itemsize
    assert sum(mla.cache_width(layer) for layer in range(spec.num_layers)) == per_token


def latent_decoder_in(decoder: Decoder, dtype: torch.dtype) -> Decoder:
    """An empty decoder of the same shape; a cache needs no weights."""
    return Decoder(decoder.spec, dtype=dtype)
