"""A byte-level model that was taught a little English: random weights have no attention worth saving."""

from __future__ import annotations

import functools
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.models.decoder import Decoder
from specbench.models.spec import ModelSpec
from specbench.training.distil import trained_tensors

SPEC = ModelSpec(
    family="llama",
    num_layers=2,
    hidden_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=128,
    vocab_size=128,
    max_positions=256,
    tied_embeddings=True,
)
STEPS, BATCH, LENGTH, RATE = 220, 16, 64, 5e-3


@functools.cache
def text() -> Tensor:
    """ASCII bytes of the interpreter's own help pages."""
    joined = "\n".join(topics[name] for name in sorted(topics))
    return torch.tensor(list(joined.encode("ascii", "replace")))


def sequences(count: int, length: int, *, seed: int) -> Tensor:
    """Random excerpts [count, length]; odd seeds from the first half of the text, even ones from the second."""
    generator = torch.Generator().manual_seed(seed)
    half = len(text()) // 2
    starts = torch.randint(half - length, (count,), generator=generator) + (0 if seed % 2 else half)
    return text()[starts[:, None] + torch.arange(length)]


@functools.cache
def trained_model() -> Decoder:
    """The model after STEPS batches of the first half of the text, float32."""
    generator = torch.Generator().manual_seed(0)
    model = Decoder(SPEC, dtype=torch.float32)
    for name, slot in model.slots().items():
        scale = 0.02 if "embed" in name else slot.shape[-1] ** -0.5
        slot.copy_(torch.ones_like(slot) if slot.dim() == 1 else torch.randn(slot.shape, generator=generator) * scale)
    model.finish("library")
    tensors = [model.embedding, *trained_tensors(model)]
    for tensor in tensors:
        tensor.requires_grad_()
    optimiser = torch.optim.AdamW(tensors, lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(STEPS):
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 20) * (1 - step / STEPS)
        ids = sequences(BATCH, LENGTH + 1, seed=2 * step + 1)
        logits = model.forward(ids[:, :-1]).logits
        assert logits is not None
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for tensor in tensors:
        tensor.requires_grad_(False)
    return model


@torch.no_grad()
def first_choices(model: Decoder, ids: Tensor) -> Tensor:
    """The most likely next byte at every place, [B, T]."""
    logits = model.forward(ids).logits
    assert logits is not None
    return logits.argmax(-1)
