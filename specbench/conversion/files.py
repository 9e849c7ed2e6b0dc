"""Finished layers on disk, one file each, whole or absent: what a killed conversion goes on from."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from specbench.types import ModelError


def tensor_digest(tensor: Tensor) -> str:
    """12 hex of the numbers of a tensor."""
    return hashlib.sha256(tensor.cpu().contiguous().numpy().tobytes()).hexdigest()[:12]


def layer_path(folder: Path, layer: int) -> Path:
    """Where a layer's file lies."""
    return folder / f"layer-{layer:03d}.safetensors"


def save_layer(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write one layer with what is known about it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
        partial,
        {"facts": json.dumps(facts)},
    )
    os.replace(partial, path)


def load_layer(path: Path, device: Any = "cpu") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and facts of one layer; ModelError where the file is damaged."""
    with _opened(path, device) as stored:
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118  (not a mapping)
        return tensors, json.loads(stored.metadata()["facts"])


def layer_facts(path: Path) -> dict[str, Any]:
    """What is known about one layer, without its tensors; ModelError where the file is damaged."""
    with _opened(path, "cpu") as stored:
        return dict(json.loads(stored.metadata()["facts"]))


@contextmanager
def _opened(path: Path, device: Any) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt", device=str(device)) as stored:
            yield stored
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path} is damaged: remove it, and it is made again ({error})") from error
