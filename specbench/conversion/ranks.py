"""Which layer gets how much of the budget: water filling over the layers' spectra, as CARE's paper describes it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from torch import Tensor


def water_fill(spectra: Sequence[Tensor], mean_rank: int, *, step: int = 8) -> list[int]:
    """Ranks of all layers with sum L * mean_rank, multiples of `step` (where that is small beside them) but
    for what the exact sum needs.

    `spectra` [k_l], squared singular values, descending. Every layer starts at half of the mean rank; one rank after
    the other goes where it takes away the largest share of what the layer has left, up to twice the mean rank (both
    bounds are ours), never beyond k_l. ValueError where the layers cannot hold the sum.
    """
    total = mean_rank * len(spectra)
    high = [min(2 * mean_rank, len(spectrum)) for spectrum in spectra]
    if sum(high) < total:
        raise ValueError(f"layers of at most {high} ranks cannot hold {total}")
    ranks = [min(max(1, mean_rank // 2), most) for most in high]
    tails = [spectrum.flip(0).cumsum(0).flip(0).tolist() for spectrum in spectra]
    sizes = [spectrum.tolist() for spectrum in spectra]

    def entry(layer: int) -> tuple[float, int]:
        rank, left = ranks[layer], tails[layer][ranks[layer]]
        return (-sizes[layer][rank] / left if left > 0.0 else 0.0, layer)

    waiting = [entry(layer) for layer in range(len(ranks)) if ranks[layer] < high[layer]]
    heapq.heapify(waiting)
    for _ in range(total - sum(ranks)):
        _, layer = heapq.heappop(waiting)
        ranks[layer] += 1
        if ranks[layer] < high[layer]:
            heapq.heappush(waiting, entry(layer))
    return rounded(ranks, high, step if mean_rank >= 2 * step else 1)


def rounded(ranks: Sequence[int], high: Sequence[int], step: int) -> list[int]:
    """Multiples of `step` near `ranks`, at most `high`, with the same sum: what is over goes where most was cut off."""
    total = sum(ranks)
    low = [rank // step * step for rank in ranks]
    order = sorted(range(len(ranks)), key=lambda layer: (low[layer] - ranks[layer], layer))
    for layer in order:
        add = min(step, total - sum(low), high[layer] - low[layer])
        low[layer] += max(add, 0)
    return low
