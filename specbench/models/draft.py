"""A trained draft: a few layers of its own between the target's embedding and the target's head.

Embedding and head are the target's tensors in memory and are not stored again. A folder holds `config.json` (the
target's, with fewer layers), `draft.safetensors` (layers, final norm, and `head_ids` where the vocabulary is reduced)
and `card.json`, which names the target by its revision: on any other target the draft is refused.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save, save_file
from torch import Tensor

from specbench.models.checkpoint import LoadedModel, cast_all, fill_slots, read_tensor, weight_files
from specbench.models.decoder import Decoder
from specbench.models.latent_model import copy_side_files, latent_config, write_library_module
from specbench.models.latent_spec import LatentSpec
from specbench.models.linear import ReducedHead
from specbench.models.prepare import file_sha256
from specbench.models.source import Source
from specbench.models.spec import read_json, read_spec
from specbench.results.files import write_atomically
from specbench.types import ModelError

SHIPPED = "artefact:"  # model.draft=artefact:NAME is a draft that comes with this package
WEIGHTS, CARD, CONFIG = "draft.safetensors", "card.json", "config.json"
_EMBEDDING, _HEAD, _HEAD_IDS = "model.embed_tokens.weight", "lm_head.weight", "head_ids"
_OF_THE_TARGET = (_EMBEDDING, _HEAD)
_STORED = torch.bfloat16  # the same weights in runs of every dtype
TRAIN = "train one with scripts/train_draft.py"


def find_draft(source: str) -> Path | None:
    """The folder of a trained draft that `source` names (shipped or local); None for any other model.

    Raises ModelError for a shipped draft that is not there.
    """
    if not source.startswith(SHIPPED):
        folder = Path(source).expanduser()
        return folder if (folder / WEIGHTS).is_file() else None
    folder = Path(str(resources.files("specbench"))) / "artefacts" / "drafts"
    names = sorted(path.parent.name for path in folder.glob(f"*/{WEIGHTS}"))
    name = source.removeprefix(SHIPPED)
    if name not in names:
        raise ModelError(f"model.draft={source}: no such draft is shipped; there are: {', '.join(names)}; {TRAIN}")
    return folder / name


def load_draft(folder: Path, target: LoadedModel, vocab: str = "own") -> LoadedModel:
    """The draft of a folder on top of `target`; raises ModelError where it was trained for another one.

    `vocab="full"`: it scores every token with the target's whole head, whatever it was trained to draft; what was made
    for the draft as it is (a gate, a length) is then not its own, so that its revision is another.
    """
    card = read_json(folder / CARD)
    trained_for = card.get("target_revision")
    if trained_for != target.revision:
        raise ModelError(
            f"the draft in {folder} was trained for {card.get('target')} (revision {trained_for}), not for "
            f"{target.name} (revision {target.revision}); {TRAIN}"
        )
    reduced = vocab == "own"
    ids = read_tensor([folder / WEIGHTS], _HEAD_IDS) if reduced else None
    head = None if ids is None else _head_of(target)
    stored = read_spec(folder)
    draft = new_draft(target.decoder, stored.num_layers, ids, head=head, mla=stored.mla)
    fill_slots(own_slots(draft), [folder / WEIGHTS], others=(_HEAD_IDS,))
    draft.finish(target.decoder.linear_path)
    found = draft_source(folder)
    revision = found.revision if reduced else f"{found.revision}-full"
    return LoadedModel(draft, draft.spec, target.chat, target.stop_ids, found.name, revision, folder)


def draft_source(folder: Path) -> Source:
    """Name and revision of a trained draft; by its weights, so that what was made for it outlives a new card."""
    return Source(folder, folder.resolve().name, f"draft-{file_sha256(folder / WEIGHTS)[:16]}")


def held_out_every(folder: Path) -> int | None:
    """One prompt in how many a trained draft never saw (`training.distil.is_held_out`); None where no card says it."""
    every = read_json(folder / CARD).get("settings", {}).get("held_out_every")
    return None if every is None else int(every)


def new_draft(
    target: Decoder,
    num_layers: int,
    head_ids: Tensor | None,
    *,
    head: Tensor | None = None,
    mla: LatentSpec | None = None,
) -> Decoder:
    """A decoder of `num_layers` empty layers with the target's embedding and head; `finish` is left to the caller.

    `head_ids` [n] names the tokens that it can draft (None: all) and `head` is the target's head [V, d], by default
    taken from the target, which must not have packed it then. `mla`: the layers' attention where it is a latent one.
    """
    spec = replace(target.spec, num_layers=num_layers, tied_embeddings=True, mla=mla)
    draft = Decoder(spec, dtype=target.dtype, device=target.device, embedding=target.embedding)
    draft.head = target.head
    if head_ids is not None:
        weight = target.head.weight if head is None else head
        assert weight is not None, "a packed head cannot be read"
        rows = weight[head_ids.to(weight.device).long()].to(device=target.device, dtype=target.dtype)
        ids = head_ids.to(target.device).long()
        draft.head = ReducedHead(rows, ids, target.spec.vocab_size, out_dtype=target.head.out_dtype)
    return draft


def own_slots(draft: Decoder) -> dict[str, Tensor]:
    """Library tensor name -> view of what belongs to the draft alone: its layers and its final norm."""
    return {name: slot for name, slot in draft.slots().items() if name not in _OF_THE_TARGET}


def copy_layers(target: Decoder, draft: Decoder, layers: Sequence[int]) -> None:
    """Start the draft's layers as copies of the target's `layers`, and its final norm as the target's."""
    if target.spec.mla is not None:
        raise ModelError(
            "a draft starts as a copy of the target's layers; those with latent attention are not supported"
        )
    theirs, ours = target.slots(), own_slots(draft)
    for name, slot in ours.items():
        head, _, rest = name.removeprefix("model.layers.").partition(".")
        slot.copy_(theirs[f"model.layers.{layers[int(head)]}.{rest}"] if head.isdigit() else theirs[name])


def save_draft(
    folder: Path, draft: Decoder, target_folder: Path, *, head_ids: Tensor | None, card: Mapping[str, Any]
) -> None:
    """Write a draft that `load_draft` reads; the card must name `target` and `target_revision`."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, slot in own_slots(draft).items():
        stored = _STORED if slot.is_floating_point() else slot.dtype
        tensors[name] = slot.detach().to("cpu", stored, copy=True).contiguous()
    if head_ids is not None:
        tensors[_HEAD_IDS] = head_ids.to(torch.int32)
    write_atomically(folder / WEIGHTS, save(tensors, metadata={"format": "pt"}))
    config = _config(target_folder, draft.spec.num_layers)
    config = config if draft.spec.mla is None else latent_config(config, draft.spec)
    for name, content in ((CONFIG, config), (CARD, card)):
        (folder / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _config(target_folder: Path, num_layers: int) -> dict[str, Any]:
    """The target's config.json with fewer layers; a list of layer kinds (all of full attention) is cut too."""
    config = {**read_json(target_folder / CONFIG), "num_hidden_layers": num_layers}
    if config.get("layer_types"):
        config["layer_types"] = config["layer_types"][:1] * num_layers
    return config


def export_library(folder: Path, target_folder: Path, out: Path) -> None:
    """Write the draft as a full model in the transformers library's layout: the target's whole vocabulary, tied or not.

    A reduced vocabulary grows back to the whole one: the layers are the same, more tokens can be drafted.
    """
    out.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor for name, tensor in load_file(folder / WEIGHTS).items() if name != _HEAD_IDS}
    tensors[_EMBEDDING] = _required(target_folder, _EMBEDDING)
    if not read_spec(target_folder).tied_embeddings:
        tensors[_HEAD] = _required(target_folder, _HEAD)
    save_file(cast_all(tensors, tensors[_EMBEDDING].dtype), out / "model.safetensors", {"format": "pt"})
    (out / CONFIG).write_bytes((folder / CONFIG).read_bytes())
    write_library_module(out, read_json(folder / CONFIG))
    copy_side_files(target_folder, out)


@contextmanager
def library_folder(folder: Path, target_folder: Path) -> Iterator[Path]:
    """A folder that the transformers library can load: `folder` itself, or a trained draft exported for the moment."""
    if not (folder / WEIGHTS).is_file():
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="specbench-draft-") as work:
        export_library(folder, target_folder, Path(work))
        yield Path(work)


def _head_of(target: LoadedModel) -> Tensor:
    """The target's head [V, d]: still in memory where it is tied, else read again, since it may be packed."""
    if target.spec.tied_embeddings:
        return target.decoder.embedding
    return _required(target.folder, _HEAD)


def _required(folder: Path, name: str) -> Tensor:
    tensor = read_tensor(weight_files(folder), name)
    if tensor is None:
        raise ModelError(f"{folder}: tensor {name} is in none of its safetensors files")
    return tensor
