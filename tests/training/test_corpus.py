"""Answers come back from disk as they were written."""

from __future__ import annotations

import pytest
import torch

from specbench.training.corpus import (
    Example,
    batch_files,
    count_tokens,
    in_windows,
    read_corpus,
    read_examples,
    write_examples,
)
from specbench.types import DataError


def example(prompt: int, answer: int, source: str = "user") -> Example:
    draws = torch.Generator().manual_seed(prompt * 100 + answer)
    return Example(
        source,
        answer % 2 == 0,
        torch.randint(50_000, (prompt,), generator=draws),
        torch.randint(50_000, (answer,), generator=draws),
        torch.randn(answer, 4, generator=draws).half(),
        torch.randn(answer, generator=draws),
    )


def test_examples_survive_the_disk(tmp_path):
    written = [example(3, 5), example(7, 1, "gsm8k"), example(2, 4)]
    write_examples(tmp_path / "a" / "00.safetensors", written)
    for before, after in zip(written, read_examples(tmp_path / "a" / "00.safetensors"), strict=True):
        assert (before.source, before.greedy) == (after.source, after.greedy)
        for name in ("prompt", "answer", "states", "log_z", "ids"):
            assert torch.equal(getattr(before, name), getattr(after, name))
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["00.safetensors"]


def test_ids_end_before_the_last_token():
    one = example(3, 5)
    assert one.ids.tolist() == [*one.prompt.tolist(), *one.answer.tolist()[:-1]]


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "00.safetensors"
    write_examples(path, [example(3, 5)])
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(DataError, match=r"00\.safetensors is damaged"):
        read_examples(path)


def test_a_corpus_is_all_files_in_order(tmp_path):
    for number, source in enumerate("ab"):
        write_examples(tmp_path / f"{number}.safetensors", [example(2 + number, 3, source)])
    (tmp_path / "2.partial").write_bytes(b"a killed write")
    found = read_corpus(batch_files(tmp_path))
    assert [one.source for one in found] == ["a", "b"]
    assert count_tokens(found) == {"a": {"answers": 1, "tokens": 3}, "b": {"answers": 1, "tokens": 3}}


def test_windows_sort_within_themselves_only():
    assert list(in_windows([5, 1, 3, 2, 9, 4], 3)) == [[1, 2, 0], [3, 5, 4]]
