"""Load a decoder from config.json and safetensors, tensor by tensor, and refuse anything that does not fit."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from specbench.models.chat import Chat, load_chat
from specbench.models.decoder import Decoder
from specbench.models.source import resolve
from specbench.models.spec import ModelSpec, read_json, read_spec
from specbench.types import ModelError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_IGNORED_SUFFIX = "rotary_emb.inv_freq"  # old checkpoints store what config.json already says


@dataclass(frozen=True)
class LoadedModel:
    """A decoder ready to run, with its tokenizer and where it came from."""

    decoder: Decoder
    spec: ModelSpec
    chat: Chat | None  # None where the folder holds no tokenizer
    stop_ids: frozenset[int]
    name: str
    revision: str
    folder: Path


def load_model(
    source: str,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    cache_dir: Path,
    revision: str | None = None,
    chat_template: str | None = None,
) -> LoadedModel:
    """Resolve `source` (folder, Hub id, .gguf, embedded:smollm2, tiny:...) and load it; raises ModelError.

    `chat_template` (Jinja) is used where the tokenizer brings none.
    """
    found = resolve(source, cache_dir=cache_dir, revision=revision)
    decoder = load_decoder(found.folder, dtype=dtype, device=device)
    chat = load_chat(found.folder, found.name, chat_template=chat_template)
    stop_ids = chat.stop_ids if chat is not None else frozenset()
    return LoadedModel(decoder, decoder.spec, chat, stop_ids, found.name, found.revision, found.folder)


def load_decoder(folder: Path, *, dtype: torch.dtype, device: torch.device | str) -> Decoder:
    """The decoder of a folder in `dtype`; never holds a second copy of the weights; raises ModelError."""
    files = weight_files(folder)
    decoder = Decoder(read_spec(folder), dtype=dtype, device=device)
    fill_slots(decoder.slots(), files)
    return decoder.finish()


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, single or sharded; raises ModelError where there are none or some miss."""
    if (folder / _INDEX).is_file():
        named = read_json(folder / _INDEX).get("weight_map")
        if not isinstance(named, dict) or not named:
            raise ModelError(f"{folder / _INDEX}: no weight_map")
        files = [folder / name for name in sorted(set(named.values()))]
    else:
        files = [folder / _SINGLE]
    missing = [path.name for path in files if not path.is_file()]
    if missing and list(folder.glob("*.bin")):
        raise ModelError(
            f"{folder} holds its weights only as pytorch .bin files, which can run code when read; convert them to "
            "safetensors (load with transformers, then save_pretrained), or name a revision that has them"
        )
    if missing:
        raise ModelError(f"{folder} lacks {', '.join(missing)}")
    return files


def read_tensor(files: list[Path], name: str) -> Tensor | None:
    """The tensor of that name, None where no file has it; raises ModelError where a file is damaged."""
    return next((tensor for found, tensor in stored_tensors(files) if found == name), None)


def cast_all(parts: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Floats in `dtype`, indices as they are."""
    return {name: part.to(dtype) if part.is_floating_point() else part for name, part in parts.items()}


def fill_slots(slots: Mapping[str, Tensor], files: list[Path], *, others: Collection[str] = ()) -> None:
    """Copy every tensor of the files but `others` into its slot, each exactly once.

    Raises ModelError naming tensor and file.
    """
    filled: dict[str, str] = {}
    for path in files:
        for name, tensor in stored_tensors([path]):
            if name.endswith(_IGNORED_SUFFIX) or (name == "lm_head.weight" and name not in slots) or name in others:
                continue
            if name in filled:
                raise ModelError(f"{path}: tensor {name} is also in {filled[name]}")
            copy_into(slots.get(name), tensor, f"{path}: tensor {name}")
            filled[name] = path.name
    missing = [name for name in slots if name not in filled]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(f"{files[0].parent}: tensor {missing[0]}{more} is in none of {len(files)} safetensors file(s)")


def stored_tensors(files: Sequence[Path]) -> Iterator[tuple[str, Tensor]]:
    """Tensors of files by name, read from the memory map: no copy of a file is held."""
    for path in files:
        try:
            with safe_open(path, framework="pt") as stored:
                for name in sorted(stored.keys()):
                    yield name, stored.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path} is damaged or incomplete: {error}") from error


def copy_into(slot: Tensor | None, tensor: Tensor, where: str) -> None:
    """Copy a stored tensor into its slot; raises ModelError, with `where` it is from, if it does not fit."""
    if slot is None:
        raise ModelError(f"{where} is not part of this architecture")
    if tensor.shape != slot.shape:
        raise ModelError(f"{where} has shape {list(tensor.shape)}, config.json asks for {list(slot.shape)}")
    if tensor.dtype not in _FLOATS and tensor.dtype != slot.dtype:
        raise ModelError(f"{where} has type {tensor.dtype}; supported: float16, bfloat16, float32, float64")
    slot.copy_(tensor)
