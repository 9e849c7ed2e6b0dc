"""Models whose attention was converted to latent attention: put together in memory, written, and told apart by base.

A folder holds all weights (`model.safetensors`), the base's tokenizer, a config.json whose table `mla` describes the
attention and names the base by its revision, and a module with which the transformers library loads it as well.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specbench.models.checkpoint import LoadedModel, cast_all, copy_into, stored_tensors, weight_files
from specbench.models.decoder import Decoder
from specbench.models.latent import LatentAttention
from specbench.models.latent_spec import LatentSpec
from specbench.models.layer import Layer
from specbench.models.prepare import CARD as GGUF_CARD
from specbench.models.source import Source
from specbench.models.spec import LATENT_FAMILIES, ModelSpec, read_json
from specbench.types import ModelError

CONFIG, WEIGHTS, CARD, MODULE = "config.json", "model.safetensors", "card.json", "modeling_mla.py"
_LIBRARY_SOURCE = Path(__file__).with_name("hf_mla.py")
_SIDE_FILES = (".json", ".jinja", ".txt", ".model")
_NOT_COPIED = (CONFIG, CARD, GGUF_CARD)


@dataclass(frozen=True)
class Base:
    """What a converted model was made from (name and exact revision), and how."""

    name: str
    revision: str
    provenance: Mapping[str, Any]


@torch.no_grad()
def latent_decoder(base: Decoder, mla: LatentSpec, tensors: Mapping[str, Tensor]) -> Decoder:
    """`base` with latent attention in every layer; all else is shared with it, not copied.

    `tensors`: by stored name (``model.layers.0.self_attn.kv_down.weight``); an output projection or a norm of queries
    and keys that is not among them is the base's. Raises ModelError naming a tensor that is missing, unknown or of
    another shape.
    """
    latent = copy.copy(base)
    latent.spec = replace(base.spec, mla=mla)
    known: set[str] = set()
    latent.layers = []
    for index, layer in enumerate(base.layers):
        converted, used = _converted(latent, layer, index, tensors)
        latent.layers.append(converted)
        known |= used
    _refuse_unknown(tensors, known)
    return latent


def _converted(latent: Decoder, layer: Layer, index: int, tensors: Mapping[str, Tensor]) -> tuple[Layer, set[str]]:
    """A layer with attention of its own, and the names of the tensors that it could take."""
    prefix = f"model.layers.{index}.self_attn."
    attention = LatentAttention(latent.spec, index, dtype=latent.dtype, device=latent.device)
    slots = attention.slots(prefix)
    output = {name for name in slots if ".o_proj." in name}
    if not output & tensors.keys():
        attention.out = layer.attention.out
    held = {**_norms(layer, prefix), **tensors}
    for name in slots.keys() - (output if attention.out is layer.attention.out else set()):
        if name not in held:
            raise ModelError(f"converted attention: tensor {name} is missing")
        copy_into(slots[name], held[name], f"converted attention: tensor {name}")
    attention.finish()
    if latent.linear_path == "packed":
        attention.widen()
    for linear in attention.linears():
        linear.prepare(latent.linear_path)
    converted = copy.copy(layer)
    converted.attention = attention
    return converted, set(slots)


def _norms(layer: Layer, prefix: str) -> dict[str, Tensor]:
    """The base's norms of queries and keys, by stored name."""
    attention = layer.attention
    if isinstance(attention, LatentAttention):
        raise ModelError("this model has latent attention already; converting starts from grouped-query attention")
    if attention.qk_norm is None:
        return {}
    queries, keys = attention.qk_norm[0], attention.qk_norm[attention.heads]
    return {f"{prefix}q_norm.weight": queries, f"{prefix}k_norm.weight": keys}


def save_latent(
    folder: Path, base: LoadedModel, mla: LatentSpec, tensors: Mapping[str, Tensor], *, provenance: Mapping[str, Any]
) -> Path:
    """Write a model that `load_model` and the transformers library read; gives `folder`.

    `tensors`: as for `latent_decoder`. All else is copied from the folder of `base`, in whose dtype the weights are
    stored. `provenance` (JSON) says how it was made. Raises ModelError for tensors that do not fit.
    """
    spec = replace(base.spec, mla=mla)
    config = latent_config(read_json(base.folder / CONFIG), spec)
    config["mla"] |= {"base": base.name, "base_revision": base.revision, "provenance": dict(provenance)}
    stored = _all_tensors(base.folder, spec, tensors)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(stored, folder / WEIGHTS, metadata={"format": "pt"})
    copy_side_files(base.folder, folder)
    write_library_module(folder, config)
    # Last: a folder without a config is no model, so a killed writer leaves nothing that can be mistaken for one.
    (folder / CONFIG).write_text(json.dumps(config, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return folder


def copy_side_files(source: Path, out: Path) -> None:
    """Copy tokenizer and settings of a model, without its config, its cards and the index of its weights."""
    for path in source.iterdir():
        if path.suffix in _SIDE_FILES and path.name not in _NOT_COPIED and not path.name.endswith(".index.json"):
            shutil.copyfile(path, out / path.name)


def _all_tensors(base: Path, spec: ModelSpec, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every tensor of the converted model by name, the base's where `tensors` has none."""
    shapes = {name: slot.shape for name, slot in Decoder(spec, dtype=torch.float32, device="meta").slots().items()}
    _refuse_unknown(tensors, shapes.keys())
    found = {
        name: tensor for name, tensor in stored_tensors(weight_files(base)) if name in shapes and name not in tensors
    }
    dtype = next(iter(found.values())).dtype
    found |= {name: tensor.detach().cpu() for name, tensor in tensors.items()}
    for name, shape in shapes.items():
        if name not in found:
            raise ModelError(f"converted attention: tensor {name} is missing")
        if found[name].shape != shape:
            raise ModelError(f"tensor {name} has shape {list(found[name].shape)}, mla asks for {list(shape)}")
    return {name: tensor.contiguous() for name, tensor in cast_all(found, dtype).items()}


def latent_config(config: Mapping[str, Any], spec: ModelSpec) -> dict[str, Any]:
    """config.json of a base turned into that of the converted model `spec`, without its origin.

    Raises ModelError for a family that has no converted form.
    """
    assert spec.mla is not None
    named = {family: name for name, family in LATENT_FAMILIES.items()}
    if spec.family not in named:
        raise ModelError(
            f"models of family {spec.family} cannot be stored with latent attention; legal: {', '.join(named)}"
        )
    architecture = named[spec.family]
    changed = {key: value for key, value in config.items() if key != "auto_map"}
    changed |= {"architectures": [architecture], "model_type": f"{spec.family}_mla", "mla": spec.mla.to_config()}
    if spec.mla.form == "split":  # the library's cache does not know the positions that form svd needs
        module = MODULE.removesuffix(".py")
        config_class = architecture.replace("ForCausalLM", "Config")
        changed["auto_map"] = {
            "AutoConfig": f"{module}.{config_class}",
            "AutoModelForCausalLM": f"{module}.{architecture}",
        }
    return changed


def write_library_module(folder: Path, config: Mapping[str, Any]) -> None:
    """Put the module that `auto_map` of a config.json names beside it, if it names ours."""
    if any(str(value).startswith(f"{Path(MODULE).stem}.") for value in config.get("auto_map", {}).values()):
        shutil.copyfile(_LIBRARY_SOURCE, folder / MODULE)


def read_base(folder: Path) -> Base:
    """What the converted model of a folder was made from; raises ModelError where the folder does not say."""
    table = dict(read_json(folder / CONFIG).get("mla") or {})
    if (folder / CARD).is_file():  # a converted draft that shares its target's embedding keeps its origin there
        table = {**read_json(folder / CARD), **table}
    missing = [key for key in ("base", "base_revision") if key not in table]
    if missing:
        raise ModelError(f"{folder} does not say what it was converted from: {', '.join(missing)} missing")
    return Base(str(table["base"]), str(table["base_revision"]), table.get("provenance") or {})


def check_base(folder: Path, base: LoadedModel | Source) -> Base:
    """What the converted model of a folder was made from; raises ModelError where it is another than `base`."""
    made_from = read_base(folder)
    if made_from.revision != base.revision:
        raise ModelError(
            f"the model in {folder} was converted from {made_from.name} (revision {made_from.revision}), not from "
            f"{base.name} (revision {base.revision}); convert that one with scripts/convert_mla.py"
        )
    return made_from


def _refuse_unknown(tensors: Mapping[str, Tensor], known: Any) -> None:
    unknown = sorted(tensors.keys() - known)
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise ModelError(f"converted attention: tensor {unknown[0]}{more} is not part of this form of it")
