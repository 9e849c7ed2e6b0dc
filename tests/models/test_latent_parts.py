"""What latent attention is used for beyond decoding: low precision, gradients, its parts, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specbench.models.batch import BatchRequest, answer_batch
from specbench.models.draft import copy_layers, new_draft
from specbench.models.latent_model import latent_decoder
from specbench.types import ModelError
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
)
from tests.models.pairs import decoder_of, library_model, random_ids

# ---- lower precision


@pytest.mark.parametrize("form", FORMS)
def test_lower_precision_stays_near_and_both_product_paths_agree(form: str) -> None:
    exact, ids = latent_model(form), random_ids(40)
    expected = exact.forward(ids).logits
    assert expected is not None
    library = decode(latent_model(form, dtype=torch.bfloat16), ids, (30, 1, 9))
    packed = decode(latent_model(form, dtype=torch.bfloat16, path="packed"), ids, (30, 1, 9))
    step = torch.finfo(torch.bfloat16).eps * float(expected.abs().max())
    assert library.dtype == packed.dtype == torch.float32
    assert float((library - expected).abs().mean()) < 8 * step
    assert float((packed - library).abs().mean()) < 8 * step


# ---- training


@pytest.mark.parametrize("form", FORMS)
def test_gradients_reach_the_parts_in_use(form: str) -> None:
    decoder = latent_model(form)
    attention, x = attention_of(decoder), random_states(9, batch=2)
    before = attention(x, decoder.batch_rows(x), None)
    leaves = {name: part.clone().requires_grad_() for name, part in attention.parts().items()}
    for _ in range(2):  # twice: a second pass must not meet the graph of the first
        attention.use(leaves)
        after = attention(x, decoder.batch_rows(x), None)
        after.square().mean().backward()
    assert torch.equal(before, after)
    constant = {"k_up.bias"} if decoder.spec.mla is not None and decoder.spec.mla.form == "split" else set()
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        # the bias of keys that are not rotated adds the same to all scores of a query
        assert bool(leaf.grad.abs().max() > 1e-12) == (name not in constant), name


def test_only_the_parts_given_are_replaced_and_frozen_ones_get_no_gradient() -> None:
    decoder = latent_model("exact bias")
    attention, x = attention_of(decoder), random_states(9)
    held = {name: part.clone() for name, part in attention.parts().items()}
    trained = {"q_rope.weight": held["q_rope.weight"].clone().requires_grad_()}
    for _ in range(2):
        attention.use(trained)
        attention(x, decoder.batch_rows(x), None).square().mean().backward()
    with torch.no_grad():
        attention.use({"q_rope.weight": held["q_rope.weight"] + 1})
    now = attention.parts()
    assert {name for name in held if not torch.equal(held[name], now[name])} == {"q_rope.weight"}
    with pytest.raises(ModelError, match=r"k_proj\.weight.*q_nope\.weight"):
        attention.use({"k_proj.weight": held["k_rope.weight"]})


@pytest.mark.parametrize("form", SPLIT)
def test_keys_and_values_are_those_that_are_read(form: str) -> None:
    decoder = latent_model(form, absorb_rows=0)
    attention, x = attention_of(decoder), random_states(7, batch=2)
    rows = decoder.batch_rows(x)
    content, turned, values = attention.keys_values(x, rows)
    _, new = attention._project(x, rows)
    keys, read = attention._expand(new, (rows.cos, rows.sin))
    near(values.transpose(1, 2), read)
    for head in range(4):
        group = head * content.shape[2] // 4
        near(keys[:, head, :, : content.shape[-1]], content[:, :, group])
        near(keys[:, head, :, content.shape[-1] :], turned[:, :, head * turned.shape[2] // 4])


# ---- what is refused


def test_converted_tensors_that_do_not_fit_are_refused_by_name() -> None:
    base = decoder_of(library_model("llama"))
    mla = latent_spec(base.spec)
    tensors = random_tensors(base, mla)
    name = "model.layers.1.self_attn.kv_down.weight"
    with pytest.raises(ModelError, match=rf"{name} is missing"):
        latent_decoder(base, mla, {key: value for key, value in tensors.items() if key != name})
    with pytest.raises(ModelError, match=rf"{name} has shape \[5, 32\].*\[9, 32\]"):
        latent_decoder(base, mla, tensors | {name: torch.zeros(5, 32)})
    with pytest.raises(ModelError, match=r"layers\.2\.self_attn\.kv_down.*not part"):
        latent_decoder(base, mla, tensors | {"model.layers.2.self_attn.kv_down.weight": torch.zeros(5, 32)})
    index = "model.layers.0.self_attn.rope_index"
    with pytest.raises(ModelError, match="0 to 3"):
        latent_decoder(base, mla, tensors | {index: torch.full_like(tensors[index], 4)})


def test_a_converted_model_is_not_converted_again() -> None:
    decoder = latent_model("one rope head")
    assert decoder.spec.mla is not None
    mla = replace(decoder.spec.mla, absorb_rows=0)
    with pytest.raises(ModelError, match="already"):
        latent_decoder(decoder, mla, random_tensors(decoder, mla))


def test_a_normed_head_cannot_turn_a_pair_twice() -> None:
    decoder = latent_model("static norm")
    attention = attention_of(decoder)
    attention.rope_index[1, 1] = attention.rope_index[1, 0]
    with pytest.raises(ModelError, match="twice"):
        attention.finish()


def test_what_works_on_grouped_attention_alone_says_so() -> None:
    decoder = latent_model("one rope head", dtype=torch.float32)
    with pytest.raises(ModelError, match="latent attention"):
        answer_batch(decoder, [BatchRequest([1, 2], 3)], stop_ids=[], seed=0)
    with pytest.raises(ModelError, match="latent attention"):
        copy_layers(decoder, new_draft(decoder, 1, None), [0])
    packed = latent_model("one rope head", dtype=torch.bfloat16, path="packed")
    with pytest.raises(ModelError, match="packed"):
        attention_of(packed).parts()
