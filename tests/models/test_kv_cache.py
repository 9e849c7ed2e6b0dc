"""The cache is a length over preallocated rows: rollback sets it, a tree closes its gaps, nothing else moves."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.models.kv_cache import KVCache

SHAPES = [{"k": (2, 4), "v": (2, 3)}, {"latent": (1, 5), "rope": (1, 2)}]


def numbered(capacity: int = 10, length: int = 0, dtype: torch.dtype = torch.float32) -> KVCache:
    """A cache whose row r holds r everywhere."""
    cache = KVCache(SHAPES, capacity=capacity, dtype=dtype, device=torch.device("cpu"))
    for layer in cache.layers:
        for buffer in layer.values():
            buffer.copy_(torch.arange(capacity)[None, :, None].expand_as(buffer))
    cache.keep(range(length))
    return cache


def rows_of(cache: KVCache) -> list[int]:
    """Which numbers the committed rows hold, after checking that all buffers agree."""
    buffers = [buffer[:, : cache.length] for layer in cache.layers for buffer in layer.values()]
    first = buffers[0][0, :, 0]
    assert all(bool((buffer == first[None, :, None]).all()) for buffer in buffers)
    return [int(number) for number in first]


def test_buffers_have_the_shapes_asked_for() -> None:
    cache = KVCache(SHAPES, capacity=7, dtype=torch.bfloat16, device=torch.device("cpu"))
    assert [{name: tuple(b.shape) for name, b in layer.items()} for layer in cache.layers] == [
        {"k": (2, 7, 4), "v": (2, 7, 3)},
        {"latent": (1, 7, 5), "rope": (1, 7, 2)},
    ]
    assert all(b.dtype == torch.bfloat16 for layer in cache.layers for b in layer.values())
    assert cache.length == 0


@given(st.integers(0, 4), st.sets(st.integers(0, 5)).map(sorted))
@settings(deadline=None)
def test_kept_rows_close_their_gaps(length: int, rows: list[int]) -> None:
    cache = numbered(length=length)
    cache.keep(rows)
    assert rows_of(cache) == [*range(length), *(length + row for row in rows)]


def test_rows_kept_in_place_are_not_copied() -> None:
    cache = numbered(length=2)
    places = [buffer.data_ptr() for layer in cache.layers for buffer in layer.values()]
    cache.keep([0, 1, 4])
    cache.truncate(1)
    cache.keep([1])
    assert rows_of(cache) == [0, 2]
    assert places == [buffer.data_ptr() for layer in cache.layers for buffer in layer.values()]


def test_truncate_forgets_and_later_rows_take_the_place() -> None:
    cache = numbered(length=6)
    cache.truncate(2)
    assert rows_of(cache) == [0, 1]
    cache.truncate(2)
    cache.truncate(0)
    assert rows_of(cache) == []


@pytest.mark.parametrize("length", [-1, 4])
def test_truncate_cannot_lengthen(length: int) -> None:
    cache = numbered(length=3)
    with pytest.raises(ValueError, match="length 3"):
        cache.truncate(length)
    assert cache.length == 3


def test_keep_refuses_rows_beyond_the_capacity() -> None:
    cache = numbered(capacity=4, length=3)
    with pytest.raises(ValueError, match="capacity of 4"):
        cache.keep([0, 1])
    assert cache.length == 3


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_bytes_are_those_of_the_tensors(dtype: torch.dtype, size: int) -> None:
    cache = numbered(dtype=dtype)
    a_row = 2 * 4 + 2 * 3 + 5 + 2
    assert cache.nbytes(3) == 3 * a_row * size
    assert cache.nbytes() == 10 * a_row * size
    assert cache.nbytes() == sum(b.numel() * b.element_size() for layer in cache.layers for b in layer.values())
