"""Which layers to leave out: CLaSp's dynamic program on the states of one reference token."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.models.decoder import Decoder
from specbench.models.kv_cache import KVCache


class LayerChoice(NamedTuple):
    """Skipped layers, ascending, and the cosine of the path's last state with the full model's."""

    layers: tuple[int, ...]
    cosine: float


def choose_layers(decoder: Decoder, cache: KVCache, states: Tensor, num_skip: int) -> LayerChoice:
    """Exactly `num_skip` layers to leave out for the cache's last token, by cosine with the full model layer by layer.

    `states` [L+1, d]: the full model's residual stream of that token, the embedding first. Cell (i, j) is the state
    after i layers with j of them skipped; all j of a row are run at once. Equal cosines prefer skipping. Source: the
    CLaSp baseline of KnapSpec's repository, with explicit parents.
    """
    num_layers = states.shape[0] - 1
    ran = torch.zeros(num_layers + 1, num_skip + 1, dtype=torch.bool, device=states.device)
    row = states[:1]  # cells (0, 0..0)
    for i in range(1, num_layers + 1):
        both = min(i - 1, num_skip)  # cells 1..both can come from either side
        cells = [states[i : i + 1]]
        if both:
            run, skip = _run(decoder, cache, i - 1, row[1 : both + 1]), row[:both]
            ran[i, 1 : both + 1] = _cosine(run, states[i]) > _cosine(skip, states[i])
            cells.append(torch.where(ran[i, 1 : both + 1, None], run, skip))
        if i <= num_skip:
            cells.append(row[-1:])  # everything so far is skipped
        row = torch.cat(cells)
    cosine = float(_cosine(row[-1:], states[-1]))
    return LayerChoice(_walk_back(ran.tolist(), num_skip), cosine)


def _run(decoder: Decoder, cache: KVCache, layer: int, states: Tensor) -> Tensor:
    """States [B, d] after one layer, each as the token at the cache's last position."""
    hidden = states[:, None]
    for index in (2 * layer, 2 * layer + 1):
        hidden = hidden + decoder.sublayer(index, hidden, cache, cache.length - 1)
    return hidden[:, 0]


def _cosine(states: Tensor, full: Tensor) -> Tensor:
    return F.cosine_similarity(states.float(), full.float()[None], dim=-1)


def _walk_back(ran: list[list[bool]], num_skip: int) -> tuple[int, ...]:
    layers: list[int] = []
    i, j = len(ran) - 1, num_skip
    while j:
        if not ran[i][j]:
            layers.append(i - 1)
            j -= 1
        i -= 1
    return tuple(reversed(layers))
