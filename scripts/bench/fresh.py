"""Figures that need a process of their own: memory of loading and decoding, growth over samples, time to load."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from specbench.models.decoder import Decoder
from specbench.models.spec import ModelSpec
from specbench.models.tiny import library_config

from .measure import Bound, Figure, figure
from .stage import Settings, Stage

PROCESS = Path(__file__).with_name("fresh_process.py")
MEMORY_FACTOR, MEMORY_SLACK = 1.15, 64 * 2**20  # of weights + cache; bytes
GROWTH = Bound("<", 2.0)  # MiB over all samples
WEIGHTS = Bound("<", 3.0)  # seconds
TOKENS = 64
_MEGABYTE = 2**20
_SETTLED = 0.25  # share of the samples after which allocators have settled


def in_process(*arguments: object) -> dict[str, Any]:
    """What `fresh_process.py` measured with these arguments; RuntimeError with its last words when it failed."""
    command = [sys.executable, str(PROCESS), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def memory(stage: Stage, settings: Settings) -> list[Figure]:
    """Peak of a fresh process on a random checkpoint over what it must hold, and the trend over many samples."""
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), settings.memory_spec)
        used = in_process("peak", folder, TOKENS, stage.session.num_threads)
    grown = in_process("growth", "tiny:plain", settings.growth_samples, stage.session.num_threads)
    return [peak_figure(used), growth_figure(grown["readings"])]


def peak_figure(used: dict[str, int]) -> Figure:
    """Peak anonymous memory in MiB against 1.15 x (weights + cache) + 64 MiB."""
    limit = MEMORY_FACTOR * (used["weights"] + used["cache"]) + MEMORY_SLACK
    bound = Bound("<=", round(limit / _MEGABYTE, 1))
    detail = {key: round(value / _MEGABYTE, 1) for key, value in used.items()}
    return Figure("peak memory of a fresh process", used["peak"] / _MEGABYTE, "MiB", bound, False, detail)


def growth_figure(readings: list[int]) -> Figure:
    """Slope of anonymous memory over the samples, times their number, in MiB."""
    late = np.array(readings[int(_SETTLED * len(readings)) :]) / _MEGABYTE
    slope = float(np.polyfit(np.arange(len(late)), late, 1)[0])
    detail = {"first": float(late[0]), "last": float(late[-1])}
    return Figure(f"growth over {len(readings)} samples", slope * len(readings), "MiB", GROWTH, False, detail)


def load_time(stage: Stage, settings: Settings) -> list[Figure]:
    """Seconds of imports, of reading the converted weights, and of loading the whole model, files in the page cache."""
    config = stage.session.config
    arguments = ("load", config.model.target, config.hardware.dtype, stage.session.num_threads)
    readings = [in_process(*arguments) for _ in range(max(2, settings.rounds // 3))]
    samples = {key: [reading[key] for reading in readings] for key in readings[0]}
    rows = (
        ("reading the weights", "weights_s", WEIGHTS),
        ("imports", "import_s", None),
        ("finding the model (sha256 check)", "resolve_s", None),
        ("whole model, with check and tokenizer", "model_s", None),
    )
    return [
        figure(name, samples, lambda medians, key=key: medians[key], unit="s", required=bound)
        for name, key, bound in rows
    ]


def write_checkpoint(folder: Path, spec: ModelSpec) -> None:
    """A random bfloat16 model in the library's layout, one file a layer, never two of them in memory."""
    # Shapes come from a decoder on the meta device, so that they are stated in one place only.
    slots = Decoder(spec, dtype=torch.bfloat16, device="meta").slots()
    where: dict[str, str] = {}
    for number, names in enumerate(_shards(list(slots))):
        file = f"model-{number:05d}.safetensors"
        tensors = {name: torch.empty(slots[name].shape, dtype=torch.bfloat16).normal_(std=0.02) for name in names}
        save_file(tensors, folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    (folder / "config.json").write_text(json.dumps(library_config(spec)))


def _shards(names: list[str]) -> Iterator[list[str]]:
    """Names by layer; what belongs to no layer stands alone."""
    groups: dict[str, list[str]] = {}
    for name in names:
        parts = name.split(".")
        groups.setdefault(parts[2] if parts[1] == "layers" else name, []).append(name)
    yield from groups.values()
