"""Generated answers on disk: one file a batch, written whole or not at all, so that a kill costs one batch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from specbench.types import DataError


@dataclass(frozen=True)
class Example:
    """A prompt of p tokens and the target's answer of n tokens, with the states that predicted them."""

    source: str
    greedy: bool
    prompt: Tensor  # [p] int64
    answer: Tensor  # [n] int64
    states: Tensor  # [n, d] half precision, the target's, after its final norm
    log_z: Tensor  # [n] float32, log of the sum of exp(logits) over the target's whole vocabulary

    @property
    def ids(self) -> Tensor:
        """What a draft reads: all but the last token, [p + n - 1]; the last n rows predict the answer."""
        return torch.cat([self.prompt, self.answer[:-1]])


def write_examples(path: Path, examples: Sequence[Example]) -> None:
    """Store examples in one file, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {
        "prompt": torch.cat([example.prompt for example in examples]).to(torch.int32),
        "answer": torch.cat([example.answer for example in examples]).to(torch.int32),
        "states": torch.cat([example.states for example in examples]),
        "log_z": torch.cat([example.log_z for example in examples]),
    }
    rows = [[e.source, e.greedy, e.prompt.shape[0], e.answer.shape[0]] for e in examples]
    temporary = path.with_suffix(".partial")
    save_file(tensors, temporary, metadata={"rows": json.dumps(rows)})
    os.replace(temporary, path)


def read_examples(path: Path) -> list[Example]:
    """The examples of one file; DataError where it is damaged."""
    try:
        with safe_open(path, framework="pt") as stored:
            rows = json.loads(stored.metadata()["rows"])
            parts = {name: stored.get_tensor(name) for name in ("prompt", "answer", "states", "log_z")}
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is damaged: remove it, and it is made again ({error})") from error
    prompts = parts["prompt"].long().split([row[2] for row in rows])
    answers, states, log_z = (parts[n].split([row[3] for row in rows]) for n in ("answer", "states", "log_z"))
    return [Example(row[0], row[1], prompts[i], answers[i].long(), states[i], log_z[i]) for i, row in enumerate(rows)]


def batch_files(folder: Path) -> list[Path]:
    """The files of a corpus folder, in order."""
    return sorted(folder.glob("*.safetensors"))


def read_corpus(files: Iterable[Path]) -> list[Example]:
    """All examples of the files; answers without a token are left out."""
    return [example for path in files for example in read_examples(path) if example.answer.shape[0]]


def count_tokens(examples: Iterable[Example]) -> dict[str, dict[str, int]]:
    """Answers and answer tokens by source."""
    counts: dict[str, dict[str, int]] = {}
    for example in examples:
        entry = counts.setdefault(example.source, {"answers": 0, "tokens": 0})
        entry["answers"] += 1
        entry["tokens"] += int(example.answer.shape[0])
    return dict(sorted(counts.items()))


def in_windows(lengths: Sequence[int], window: int) -> Iterator[list[int]]:
    """Indices window by window, each window sorted by length: batches of like lengths from a mixed order."""
    for first in range(0, len(lengths), window):
        yield sorted(range(first, min(first + window, len(lengths))), key=lambda i: (lengths[i], i))
