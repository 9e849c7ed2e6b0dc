"""Reconstruction of all layers: tune each converted layer on the original's hidden states, cast it, measure it.

No target model is involved. In the stream `frozen` every layer reads what the original model's layer reads, so layers
do not depend on each other; in `converted` a layer reads what the converted and tuned layers before it give.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from specbench.config.methods_mla import MlaConfig
from specbench.conversion.calibration import Calibration
from specbench.conversion.files import layer_path, load_layer, save_layer
from specbench.conversion.functional import FunctionalLoss, KvLoss, Loss, Pairs, Tuning, error, trained_names
from specbench.conversion.walk import Walk
from specbench.models.checkpoint import cast_all
from specbench.models.decoder import Decoder
from specbench.models.latent import LatentAttention
from specbench.models.spec import ModelSpec

Layers = Callable[[int], Mapping[str, Tensor]]  # number -> tensors by their names in `self_attn.`


@dataclass
class Reconstruction:
    """Layers of `decoder`, which stays as it is, and their converted counterparts of the shape `spec`.

    `converted` gives a layer as the converter made it, `full_rank` as it was before compression; finished layers go to
    `folder` in the dtype `stored`.
    """

    decoder: Decoder
    spec: ModelSpec
    config: MlaConfig
    calibration: Calibration
    converted: Layers
    full_rank: Layers
    folder: Path
    stored: torch.dtype

    @property
    def tunes(self) -> bool:
        return self.config.reconstruction != "none"

    def run(self) -> None:
        """Finish every layer that is not finished yet."""
        paths = [layer_path(self.folder, layer) for layer in range(self.spec.num_layers)]
        if all(path.is_file() for path in paths):
            return
        ids = self.calibration.every if self.tunes else self.calibration.held_out
        walk = Walk(self.decoder, ids, self.config.reconstruct.batch)
        updates = self.config.reconstruct.updates if self.tunes else 1
        with tqdm(total=len(paths) * updates, desc="tuning" if self.tunes else "measuring", disable=None) as bar:
            for index, path in enumerate(paths):
                inputs = walk.inputs(self.decoder.layers[index])
                outputs = walk.attend(self.decoder.layers[index].attention, inputs)
                if not path.is_file():
                    save_layer(path, *self._finish(index, Pairs(inputs, outputs), bar))
                bar.update((index + 1) * updates - bar.n)
                if self.tunes and self.config.reconstruct.stream == "converted":
                    outputs = walk.attend(self.attention(index, load_layer(path, self.decoder.device)[0]), inputs)
                walk.advance(self.decoder.layers[index], outputs)

    def attention(self, index: int, tensors: Mapping[str, Tensor]) -> LatentAttention:
        """A converted layer in the decoder's dtype, with the original's own output projection."""
        found = LatentAttention(self.spec, index, dtype=self.decoder.dtype, device=self.decoder.device)
        found.out = self.decoder.layers[index].attention.out
        for name, slot in found.slots("").items():
            if name in tensors:
                slot.copy_(tensors[name])
        found.finish()
        return found

    def _finish(self, index: int, data: Pairs, bar: tqdm[Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """One layer tuned, or left, and cast; its errors are those of the outputs, on held-out sequences."""
        start, batch = time.perf_counter(), self.config.reconstruct.batch
        tensors = self.converted(index)
        attention = self.attention(index, tensors)
        parts = {name: tensors[name] for name in attention.parts() if name in tensors}
        functional = FunctionalLoss(attention, self.decoder.batch_rows(data.inputs[:1]))
        training, held_out = self._parted(data)
        facts: dict[str, Any] = {}
        if self.tunes:
            before = error(functional, parts, held_out, batch)
            tuning = Tuning(
                loss=self._loss(index, functional),
                training=training,
                held_out=held_out,
                start=parts,
                names=trained_names(parts, self.config.train_params, self.config.reconstruction),
                settings=self.config.reconstruct,
                layer=index,
                tick=lambda last: _show(bar, index, last),
            )
            parts = tuning.run()
            facts = {"error_before": before, "updates": tuning.updates, "objective": tuning.curve}
        final = cast_all({**tensors, **parts}, self.stored)
        after = error(functional, cast_all({name: final[name] for name in parts}, self.decoder.dtype), held_out, batch)
        return final, {"error_before": after, **facts, "error_after": after, "seconds": time.perf_counter() - start}

    def _parted(self, data: Pairs) -> tuple[Pairs, Pairs]:
        """Training and held-out sequences; held out are the last ones."""
        count = len(data.inputs) - len(self.calibration.held_out)
        return Pairs(data.inputs[:count], data.outputs[:count]), Pairs(data.inputs[count:], data.outputs[count:])

    def _loss(self, index: int, functional: FunctionalLoss) -> Loss:
        if self.config.reconstruction == "functional":
            return functional
        return KvLoss(cast_all(self.full_rank(index), self.decoder.dtype))


def _show(bar: tqdm[Any], index: int, last: float) -> None:
    bar.set_postfix_str(f"layer {index}, held-out error {last:.2e}", refresh=False)
    bar.update()
