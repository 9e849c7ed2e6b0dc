"""The model that everything is measured on, and prompts that are read once however often they are timed."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.utils import logging as library_logging

from specbench.config import compose
from specbench.decoding.profile import profile
from specbench.decoding.target import NO_NEEDS, Target, fill
from specbench.hardware.latency import MARGIN, LatencyModel, ProfilePlan
from specbench.hardware.profile import VerifyCurve, verify_curve
from specbench.methods.build import Parts, build_generator
from specbench.models.decoder import Decoder
from specbench.models.kv_cache import KVCache
from specbench.models.spec import ModelSpec
from specbench.models.tiny import SPEC
from specbench.runner.session import CURVE_CONTEXT, Session
from specbench.tasks import build_task, select
from specbench.types import Draft, Generator, Needs, Sample, Sampling, VerifyResult

from . import ROOT

MIXTURE = ("gsm8k", "humaneval", "cnn_dm", "mt_bench")
_PROMPT_SLACK = 1.4  # text asked of `longdoc` per token wanted: its own estimate of a token is rough

# In bfloat16 this weighs 0.97 GB.
GIGABYTE = ModelSpec(
    family="llama",
    num_layers=8,
    hidden_size=2048,
    num_heads=32,
    num_kv_heads=4,
    head_dim=64,
    intermediate_size=5632,
    vocab_size=32000,
    max_positions=4096,
)


@dataclass(frozen=True)
class Settings:
    """How much is measured. `memory_spec` is the shape of the random checkpoint that memory is measured on.

    `search_rows` are the rows a search for skip sets looks at, `skip_sets` how many random sets are timed. `samples`
    prompts (`variant_samples` of them for variants) of up to `sample_tokens` tokens compare KnapSpec with AR;
    `order_samples` of `order_tokens` are answered in `orders` orders.
    """

    contexts: tuple[int, ...] = (200, 1024, 4096)
    rounds: int = 9
    new_tokens: int = 24  # of one timed decode of ar and hf_ar
    prompts: int = 8  # of each kind
    answer_tokens: int = 96
    growth_samples: int = 200
    memory_spec: ModelSpec = GIGABYTE
    search_context: int = 200
    search_rows: int = 30
    search_prompts: int = 3
    skip_sets: int = 20
    samples: int = 16
    variant_samples: int = 4
    sample_tokens: int = 256
    host_tokens: int = 64
    long_contexts: tuple[int, ...] = (1024, 4096, 7168)
    orders: int = 2
    order_samples: int = 6
    order_tokens: int = 64


QUICK = Settings(
    rounds=2,
    new_tokens=16,
    prompts=2,
    answer_tokens=24,
    growth_samples=40,
    memory_spec=SPEC,
    search_rows=12,
    search_prompts=1,
    skip_sets=4,
    samples=4,
    variant_samples=2,
    sample_tokens=48,
    host_tokens=24,
    long_contexts=(128, 512),
    order_samples=2,
    order_tokens=24,
)


class Prefixes:
    """Caches of prompts, each filled once by our decoder; reading a prompt is not what is timed here."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._known: dict[tuple[int, ...], KVCache] = {}

    @torch.inference_mode()
    def of(self, tokens: Sequence[int]) -> KVCache:
        """A cache whose first rows are these tokens; more may follow."""
        key = tuple(tokens)
        for known, cache in self._known.items():
            if known[: len(key)] == key:
                return cache
        cache = self._decoder.new_cache(max(1, len(key)))
        fill(self._decoder, cache, key)
        self._known[key] = cache
        return cache

    def clear(self) -> None:
        self._known.clear()


class PrefilledTarget(Target):
    """A target that copies what a prompt left in the cache instead of reading the prompt again."""

    def __init__(self, decoder: Decoder, prefixes: Prefixes) -> None:
        super().__init__(decoder)
        self._prefixes = prefixes

    def prefill(self, prompt: Sequence[int], *, capacity: int, needs: Needs = NO_NEEDS) -> VerifyResult | None:
        assert needs.prompt_rows == 0, "methods that look at prompt rows must read the prompt themselves"
        self.reserve(capacity)
        known, length = self._prefixes.of(prompt[:-1]), len(prompt) - 1
        for ours, source in zip(self.cache.layers, known.layers, strict=True):
            for name, buffer in ours.items():
                buffer[:, :length] = source[name][:, :length]
        self.cache.length = length
        return None

    def pretend(self, context: int) -> None:
        """An empty cache that counts as `context` rows of noise: pages that were never written would be free to read.

        Use `noise` once before.
        """
        self.reserve(context)
        self.cache.length = context

    @torch.inference_mode()
    def noise(self, capacity: int) -> None:
        """A cache of at least `capacity` rows with random numbers in all of them."""
        self.reserve(capacity)
        for layer in self.cache.layers:
            for buffer in layer.values():
                buffer.normal_()


def quicken(model: Any, prefixes: Prefixes) -> None:
    """Let the library's model take all but the last rows of a prompt from `prefixes`; every later row is its own.

    In bfloat16 the library reads a prompt at the speed of decoding on some CPUs: minutes for 4096 tokens, none of
    which is decode time.
    """
    own = model.forward

    @functools.wraps(own)
    def forward(input_ids: Tensor, **kwargs: Any) -> Any:
        cache = kwargs.get("cache")
        empty = cache is None or cache.get_seq_length() == 0
        kept = kwargs.get("logits_to_keep")
        kept = kept if isinstance(kept, int) and kept > 0 else 16
        given = input_ids.shape[1] - kept
        if empty and given > 0:
            kwargs["cache"] = DynamicCache(config=model.config) if cache is None else cache
            _hand_over(prefixes.of(input_ids[0, :given].tolist()), given, kwargs["cache"])
            input_ids = input_ids[:, given:]
            if kwargs.get("position_ids") is not None:
                kwargs["position_ids"] = kwargs["position_ids"][:, given:]
        return own(input_ids=input_ids, **kwargs)

    model.forward = forward


def _hand_over(known: KVCache, length: int, cache: DynamicCache) -> None:
    for index, layer in enumerate(known.layers):
        cache.update(layer["k"][None, :, :length], layer["v"][None, :, :length], index)


class Stage:
    """One loaded model, its generators and its prompts."""

    def __init__(self, model: str, dtype: str, threads: int) -> None:
        library_logging.disable_progress_bar()
        self._common = [
            f"model.target={model}",
            "model.draft=null",
            "hardware.device=cpu",
            f"hardware.dtype={dtype}",
            f"hardware.num_threads={threads}",
        ]
        self.session = Session(compose([*self._common, "method=ar"]))
        self.decoder = self.session.model.decoder
        self.prefixes = Prefixes(self.decoder)
        self.target = PrefilledTarget(self.decoder, self.prefixes)
        self._parts = Parts(
            self.target,
            Sampling(),
            folder=self.session.model.folder,
            curve=functools.cache(self._measured_curve),
            latency=functools.cache(self._measured_latency),
            model_hash=self.session.model.revision,
        )

    def generator(self, method: str, *overrides: str) -> Generator:
        """The method as its YAML file and `overrides` set it; the library's models skip reading prompts."""
        config = compose([*self._common, f"method={method}", *overrides])
        generator = build_generator(config.method, self._parts)
        if hasattr(generator, "model"):
            quicken(generator.model, self.prefixes)
        return generator

    def _measured_curve(self) -> VerifyCurve:
        """t(T) as a run measures it, but always anew: the stored one may come from a busy hour."""
        self.target.noise(CURVE_CONTEXT + 128)
        return verify_curve(lambda rows: self.verify(context=CURVE_CONTEXT, rows=rows))

    def _measured_latency(self, plan: ProfilePlan) -> LatencyModel:
        """What the parts of a pass cost, always anew, on a cache that holds numbers."""
        plan = plan.within(self.decoder.spec.max_positions)
        self.target.noise(max(plan.lengths) + MARGIN)
        return profile(self.target, plan)[0]

    @torch.inference_mode()
    def verify(self, *, context: int, rows: int) -> None:
        """One verify pass of `rows` rows behind `context` rows; `target.noise` comes first."""
        self.target.pretend(context)
        tokens = torch.zeros(rows - 1, dtype=torch.int64)
        self.target.verify(0, Draft(tokens=tokens, spine=rows - 1), Needs(), greedy=True)

    def prompt(self, length: int) -> list[int]:
        """Exactly `length` token ids of Python source."""
        task = build_task("longdoc", source="embedded", context_tokens=max(128, int(_PROMPT_SLACK * length)))
        ids = self.session.chat.encode_raw(task.samples()[0].turns[0])
        assert len(ids) >= length, f"the text has {len(ids)} of {length} tokens"
        return ids[:length]

    def samples(self, name: str) -> tuple[str, list[Sample]]:
        """Name of a task's set and its samples: published ones where the data folder is here."""
        folder = Path(os.environ.get("SPECBENCH_SHARED_DATA", ROOT.parent / "shared" / "data")) / "benchmarks"
        source = "local" if folder.is_dir() else "embedded"
        task = build_task(name, source=source, data_dir=folder if source == "local" else None)
        return task.name, list(task.samples())

    def mixture(self, count: int) -> list[tuple[str, Sample]]:
        """Samples of MIXTURE's tasks in turns, each with the name of its set."""
        each = max(1, -(-count // len(MIXTURE)))
        sets = [self.samples(name) for name in MIXTURE]
        chosen = [[(name, sample) for sample in select(samples, each)] for name, samples in sets]
        return [pair for turn in zip(*chosen, strict=True) for pair in turn][:count]

    def encode(self, sample: Sample) -> list[int]:
        """Token ids of a sample's first turn in the chat template."""
        return self.session.encode_question(sample.turns[0], raw=sample.raw)


def code_editing(context_tokens: int) -> list[Sample]:
    """The samples of `longdoc` that ask for an edited copy of a source file."""
    task = build_task("longdoc", source="embedded", context_tokens=context_tokens)
    return [sample for sample in task.samples() if sample.category == "code_editing"]
