"""One conversion from beginning to end, in stages that are kept on disk layer by layer.

Statistics of the original's layers, then the converter's layers, then what reconstruction made of them. Each stage has
a folder of its own, named by all that it depends on, so that the variants of one experiment share what they can and a
killed command goes on with the layer that it was at.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from specbench.config.methods_mla import MlaConfig
from specbench.conversion.calibration import Calibration
from specbench.conversion.files import layer_facts, layer_path, load_layer, save_layer, tensor_digest
from specbench.conversion.layer import attention_weights
from specbench.conversion.plan import Converter, Plan, full_names
from specbench.conversion.reconstruct import Reconstruction
from specbench.conversion.statistics import LayerStatistics, gather
from specbench.conversion.walk import Walk, perplexity
from specbench.hardware.json_file import digest
from specbench.models.checkpoint import LoadedModel, cast_all, read_tensor, weight_files
from specbench.models.decoder import Decoder
from specbench.models.draft import WEIGHTS, save_draft
from specbench.models.latent_model import latent_decoder, save_latent
from specbench.models.latent_spec import LatentSpec
from specbench.models.linear import scored_ids
from specbench.models.spec import read_json
from specbench.results.files import write_atomically
from specbench.types import ConfigError

log = logging.getLogger(__name__)

VERSION = 2  # raise when the same settings give other weights
_OF_RECONSTRUCTION = ("reconstruction", "train_params", "reconstruct")
_BATCH = 8  # sequences that go through a layer at a time while statistics are gathered


def convert(
    base: LoadedModel,
    config: MlaConfig,
    calibration: Calibration,
    folder: Path,
    *,
    work: Path,
    target: LoadedModel | None = None,
) -> Path:
    """Convert `base` (float32 in memory, weights not packed) and write the result to `folder`, whole or not at all.

    `work` keeps the stages. `target`: the model whose embedding `base`, a trained draft, shares; None for a model of
    its own. Raises ConfigError for settings that do not fit the model, ModelError for a model that cannot be converted.
    """
    if config.converter == "none":
        raise ConfigError("method.converter=none: nothing to convert; legal: transmla, mha2mla, svd, care")
    conversion = Conversion(base, config, calibration, work, target)
    log.info("converting %s with %s: %s", base.name, config.converter, conversion.estimate())
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with torch.no_grad():
        conversion.plan  # noqa: B018  (refuses what does not fit before hours are spent)
    conversion.reconstruction.run()
    conversion.write(partial)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(partial, folder)
    return folder


@dataclass
class Conversion:
    """The stages of one conversion; arguments as for `convert`."""

    base: LoadedModel
    config: MlaConfig
    calibration: Calibration
    work: Path
    target: LoadedModel | None = None

    @property
    def decoder(self) -> Decoder:
        return self.base.decoder

    @property
    def num_layers(self) -> int:
        return self.base.spec.num_layers

    # ---- where stages lie

    @cached_property
    def _gathered(self) -> Path:
        target = None if self.target is None else self.target.revision
        key = [VERSION, self.base.revision, target, tensor_digest(self.calibration.training)]
        return self.work / f"statistics-{digest(key)}"

    @cached_property
    def _converted(self) -> Path:
        settings = {key: value for key, value in self._settings.items() if key not in _OF_RECONSTRUCTION}
        key = [self._gathered.name, settings, tensor_digest(self.calibration.held_out)]
        return self.work / f"converted-{digest(key)}"

    @cached_property
    def _finished(self) -> Path:
        settings = {key: self._settings[key] for key in _OF_RECONSTRUCTION}
        return self.work / f"finished-{digest([self._converted.name, settings])}"

    @property
    def _settings(self) -> dict[str, Any]:
        settings = self.config.conversion()
        del settings["calibration"]  # its ids are in the keys
        return {**settings, "reconstruct": asdict(self.config.reconstruct)}

    # ---- stage 1: what the layers read

    @cached_property
    def statistics(self) -> list[LayerStatistics]:
        """Of every layer of the original model, on the training sequences."""
        paths = [layer_path(self._gathered, layer) for layer in range(self.num_layers)]
        if not all(path.is_file() for path in paths):
            self._gather(paths)
        return [LayerStatistics(**load_layer(path, self.decoder.device)[0]) for path in paths]

    def _gather(self, paths: list[Path]) -> None:
        walk = Walk(self.decoder, self.calibration.training, _BATCH)
        for index, path in enumerate(tqdm(paths, desc="reading calibration text", disable=None)):
            start = time.perf_counter()
            layer = self.decoder.layers[index]
            inputs = walk.inputs(layer)
            if not path.is_file():
                tokens = (inputs[part].flatten(0, 1) for part in walk.batches())
                found = gather(attention_weights(self.decoder, index), tokens)
                save_layer(path, found.tensors(), {"seconds": time.perf_counter() - start})
            if index + 1 < len(paths):
                walk.advance(layer, walk.attend(layer.attention, inputs))

    # ---- stage 2: the converter

    @cached_property
    def converter(self) -> Converter:
        return Converter(self.decoder, self.config, self.statistics)

    @cached_property
    def plan(self) -> Plan:
        """What is decided for the whole model."""
        path = self._converted / "plan.json"
        if path.is_file():
            stored = read_json(path)
            return Plan(**{**stored, "ranks": tuple(stored["ranks"])})
        start = time.perf_counter()
        plan = self.converter.plan(self._perplexity)
        plan = replace(plan, seconds=time.perf_counter() - start)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(asdict(plan), indent=1) + "\n").encode())
        return plan

    @cached_property
    def spec(self) -> LatentSpec:
        return self.converter.spec(self.plan)

    def converted(self, layer: int) -> dict[str, Tensor]:
        """One layer as the converter made it, float32."""
        path = layer_path(self._converted, layer)
        if not path.is_file():
            start = time.perf_counter()
            parts = cast_all(self.converter.layer(layer, self.plan), torch.float32)
            save_layer(path, parts, {"seconds": time.perf_counter() - start})
        return load_layer(path, self.decoder.device)[0]

    def _perplexity(self, spec: LatentSpec, tensors: dict[str, Tensor]) -> float:
        return perplexity(latent_decoder(self.decoder, spec, tensors), self.calibration.held_out)

    # ---- stage 3: reconstruction

    @cached_property
    def reconstruction(self) -> Reconstruction:
        return Reconstruction(
            decoder=self.decoder,
            spec=replace(self.base.spec, mla=self.spec),
            config=self.config,
            calibration=self.calibration,
            converted=self.converted,
            full_rank=lambda layer: self.converter.full_rank(layer, self.plan),
            folder=self._finished,
            stored=self._stored,
        )

    @property
    def _is_trained_draft(self) -> bool:
        return (self.base.folder / WEIGHTS).is_file()

    @property
    def _stored(self) -> torch.dtype:
        """The dtype that the original's weights are stored in."""
        files = [self.base.folder / WEIGHTS] if self._is_trained_draft else weight_files(self.base.folder)
        norm = read_tensor(files, "model.norm.weight")
        assert norm is not None, "loading the base has checked its tensors"
        return norm.dtype

    # ---- the result

    def write(self, folder: Path) -> None:
        """The converted model as a folder that loads like any other, with its card."""
        layers = [load_layer(layer_path(self._finished, layer)) for layer in range(self.num_layers)]
        tensors = {name: t for i, (parts, _) in enumerate(layers) for name, t in full_names(i, parts).items()}
        card = self.card([facts for _, facts in layers])
        if not self._is_trained_draft:
            save_latent(folder, self.base, self.spec, tensors, provenance=card)
            return
        assert self.target is not None, "a trained draft comes with its target"
        latent = latent_decoder(self.decoder, self.spec, tensors)
        ids = scored_ids(self.decoder.head)
        own = {"target": self.target.name, "target_revision": self.target.revision, "provenance": card}
        own |= {"base": self.base.name, "base_revision": self.base.revision}
        save_draft(folder, latent, self.target.folder, head_ids=ids, card=own)

    def card(self, layers: list[dict[str, Any]]) -> dict[str, Any]:
        """How the model was made and how near its layers come to the original's."""
        stages = [(self._gathered, "reading"), (self._converted, "converting")]
        seconds = {name: self._seconds(folder) for folder, name in stages}
        tunes = self.config.reconstruction != "none"
        return {
            "version": VERSION,
            "settings": {**self._settings, "calibration": asdict(self.config.calibration)},
            "calibration": dict(self.calibration.card),
            "freqfold": self.plan.freqfold,
            "freqfold_perplexity": dict(self.plan.trials),
            "conversion_seconds": sum(seconds.values()) + self.plan.seconds,
            "tuning_seconds": sum(facts["seconds"] for facts in layers) if tunes else 0.0,
            "layers": [{"layer": i, "rank": self.plan.ranks[i], **facts} for i, facts in enumerate(layers)],
        }

    def _seconds(self, folder: Path) -> float:
        paths = [layer_path(folder, layer) for layer in range(self.num_layers)]
        return sum(float(layer_facts(path)["seconds"]) for path in paths)

    def estimate(self) -> str:
        """About how long everything takes here, from a short measured product; finished stages are not looked at."""
        tokens, spec = self.calibration.every.numel(), self.base.spec
        attention = 4 * spec.hidden_size * spec.num_heads * spec.head_dim  # q twice, o, and about one more for k and v
        whole = spec.num_layers * (attention + 3 * spec.hidden_size * spec.intermediate_size)
        work = 4.0 * tokens * whole
        if self.config.reconstruction == "functional":
            settings = self.config.reconstruct
            scores = self.calibration.training.shape[1] * spec.num_heads * spec.head_dim * 2
            seen = settings.updates * settings.batch * self.calibration.training.shape[1]
            work += 6.0 * seen * spec.num_layers * (attention + scores)
        return f"about {max(1, round(work / _speed(self.decoder) / 60))} min from scratch"


def _speed(decoder: Decoder) -> float:
    """Operations a second of a product in the decoder's dtype and place."""
    size = 1024
    matrix = torch.ones(size, size, dtype=decoder.dtype, device=decoder.device)
    start = time.perf_counter()
    float((matrix @ matrix).sum())  # reading the result waits for the device
    return 2.0 * size**3 / (time.perf_counter() - start)
