"""Run as a process of its own by `fresh.py`: what loading costs, and how much memory decoding takes.

    python fresh_process.py load SOURCE DTYPE THREADS
    python fresh_process.py peak FOLDER TOKENS THREADS
    python fresh_process.py growth SOURCE SAMPLES THREADS

Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_POLL = 0.002  # seconds between two readings of memory
_PROMPT = 64  # tokens


def load(source: str, dtype: str, threads: str) -> dict[str, float]:
    """Seconds to import what decoding needs, to read the weights, and to load all of the model once more."""
    start = time.perf_counter()
    import torch

    from specbench.models.checkpoint import load_decoder, load_model
    from specbench.models.source import resolve

    imported = time.perf_counter()
    torch.set_num_threads(int(threads))
    kind, cache_dir = getattr(torch, dtype), _cache_dir()
    folder = resolve(source, cache_dir=cache_dir).folder
    resolved = time.perf_counter()
    load_decoder(folder, dtype=kind, device="cpu")
    read = time.perf_counter()
    load_model(source, dtype=kind, device="cpu", cache_dir=cache_dir)
    return {
        "import_s": imported - start,
        "resolve_s": resolved - imported,
        "weights_s": read - resolved,
        "model_s": time.perf_counter() - read,
    }


def peak(folder: str, tokens: str, threads: str) -> dict[str, int]:
    """Bytes: the highest anonymous memory above the one after the imports, the weights as stored, and the cache."""
    import torch

    from specbench.hardware.monitor import anonymous_bytes
    from specbench.models.checkpoint import load_decoder, weight_files

    decoding = _decoding()
    torch.set_num_threads(int(threads))
    with _highest(anonymous_bytes) as highest:
        before = anonymous_bytes()
        decoder = load_decoder(Path(folder), dtype=torch.bfloat16, device="cpu")
        target, generator = decoding(decoder)
        generator.generate(list(range(1, _PROMPT + 1)), max_new_tokens=int(tokens), seed=0)
    weights = sum(file.stat().st_size for file in weight_files(Path(folder)))
    return {"peak": max(highest) - before, "weights": weights, "cache": target.cache.nbytes(), "imports": before}


def growth(source: str, samples: str, threads: str) -> dict[str, Any]:
    """Anonymous bytes after each of many answers to prompts of changing length."""
    import torch

    from specbench.hardware.monitor import anonymous_bytes
    from specbench.models.checkpoint import load_model

    decoding = _decoding()
    torch.set_num_threads(int(threads))
    model = load_model(source, dtype=torch.float32, device="cpu", cache_dir=_cache_dir())
    _, generator = decoding(model.decoder, drafting=True)
    readings = []
    for number in range(int(samples)):
        prompt = [(7 * number + place) % 50 for place in range(_PROMPT + number % 32)]
        generator.generate(prompt, max_new_tokens=16, seed=number)
        readings.append(anonymous_bytes())
    return {"readings": readings}


def _decoding() -> Any:
    """Import the decode loop now, and return what builds (target, generator) around a decoder."""
    from specbench.decoding.loop import SpeculativeDecoding
    from specbench.decoding.target import Target
    from specbench.methods.ar import Autoregressive
    from specbench.methods.pld import PromptLookup

    def build(decoder: Any, *, drafting: bool = False) -> tuple[Any, Any]:
        target = Target(decoder)
        return target, SpeculativeDecoding(target, PromptLookup(1, 3, 4) if drafting else Autoregressive())

    return build


@contextmanager
def _highest(read: Any) -> Iterator[list[int]]:
    """The highest reading of a thread that looks all the time; the kernel's own peak counts file pages too."""
    highest, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(_POLL):
            highest[0] = max(highest[0], read())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield highest
    finally:
        done.set()
        watcher.join()


def _cache_dir() -> Path:
    from specbench.config import compose

    return Path(compose().paths.cache_dir)


if __name__ == "__main__":
    print(json.dumps({"load": load, "peak": peak, "growth": growth}[sys.argv[1]](*sys.argv[2:])))
