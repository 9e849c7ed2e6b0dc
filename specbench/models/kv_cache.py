"""A preallocated cache of named buffers a layer with one length; rollback sets the length and copies nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

# Buffer name -> (heads, width) of one layer; widths may differ by layer (latent attention).
BufferShapes = Mapping[str, tuple[int, int]]


class KVCache:
    """Keys, values or latents of one sequence: `layers[l][name]` is [heads, capacity, width].

    `length` counts the committed rows. A forward pass writes rows at and after `length` without moving it; `keep`
    commits some of them. Rows of skipped layers stay unwritten and are never read.
    """

    def __init__(
        self, shapes: Sequence[BufferShapes], *, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.capacity = capacity
        self.length = 0
        self.layers: list[dict[str, Tensor]] = [
            {
                name: torch.zeros(heads, capacity, width, dtype=dtype, device=device)
                for name, (heads, width) in layer.items()
            }
            for layer in shapes
        ]

    def truncate(self, length: int) -> None:
        """Forget every row from `length` on."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a cache of length {self.length} to {length}")
        self.length = length

    def keep(self, rows: Sequence[int]) -> None:
        """Commit `rows` of the last forward pass (0 = the row at `length`), in ascending order, closing the gaps."""
        base, count = self.length, len(rows)
        if base + count > self.capacity:
            raise ValueError(f"{base} + {count} rows exceed the cache's capacity of {self.capacity}")
        if count and rows[-1] != count - 1:
            self._move(base, list(rows))
        self.length = base + count

    def _move(self, base: int, rows: list[int]) -> None:
        first = next(i for i, row in enumerate(rows) if i != row)
        for layer in self.layers:
            for buffer in layer.values():
                source = torch.tensor([base + row for row in rows[first:]], device=buffer.device)
                buffer[:, base + first : base + len(rows)] = buffer.index_select(1, source)

    def nbytes(self, length: int | None = None) -> int:
        """Bytes of the first `length` rows (default: of the whole capacity), measured from the tensors."""
        rows = self.capacity if length is None else length
        return sum(
            buffer.element_size() * buffer.shape[0] * buffer.shape[2] * rows
            for layer in self.layers
            for buffer in layer.values()
        )
