"""The tiny pairs as decoders, drafters that follow a script, and what AR says."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from specbench.decoding.loop import SpeculativeDecoding
from specbench.decoding.protocol import DrafterBase
from specbench.decoding.target import Target, fill
from specbench.methods.ar import Autoregressive
from specbench.models.decoder import Decoder
from specbench.models.kv_cache import KVCache
from specbench.models.spec import ModelSpec
from specbench.models.tiny import SPEC, first_layers, target_weights
from specbench.types import Draft, Needs, Sampling, Verdict, VerifyResult

DRAFT_LAYERS = 2
PROMPT = (256, 84, 104, 101, 32, 99, 97, 116, 32)


def loaded(spec: ModelSpec, weights: Mapping[str, Tensor], dtype: torch.dtype = torch.float32) -> Decoder:
    decoder = Decoder(spec, dtype=dtype)
    for name, slot in decoder.slots().items():
        slot.copy_(weights[name])
    return decoder.finish("library")


@functools.cache
def tiny_target(variant: str = "plain", dtype: torch.dtype = torch.float32) -> Decoder:
    return loaded(SPEC, target_weights(variant), dtype)


@functools.cache
def tiny_draft(variant: str = "plain") -> Decoder:
    return loaded(replace(SPEC, num_layers=DRAFT_LAYERS), first_layers(target_weights(variant), DRAFT_LAYERS))


def resized_draft(vocab: int) -> Decoder:
    """The draft with its last vocabulary rows cut off, or with rows added that it likes best of all."""
    weights = first_layers(target_weights(), DRAFT_LAYERS)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows = weights[name][:vocab]
        more = vocab - rows.shape[0]
        weights[name] = torch.cat([rows, 5 * rows[:more]]) if more > 0 else rows.contiguous()
    return loaded(replace(SPEC, num_layers=DRAFT_LAYERS, vocab_size=vocab), weights)


def decode(drafter: Any, *, decoder: Decoder | None = None, rule: str = "rejection", **sampling: Any) -> Any:
    """The loop around a drafter on the tiny target."""
    return SpeculativeDecoding(Target(decoder or tiny_target()), drafter, Sampling(**sampling), rule)


def ar_tokens(count: int, prompt: Sequence[int] = PROMPT, variant: str = "plain") -> tuple[int, ...]:
    generator = decode(Autoregressive(), decoder=tiny_target(variant))
    return generator.generate(prompt, max_new_tokens=count, seed=0).tokens


def fresh_cache(decoder: Decoder, tokens: Sequence[int]) -> KVCache:
    cache = decoder.new_cache(len(tokens) + 1)
    with torch.inference_mode():
        fill(decoder, cache, tokens)
    return cache


def assert_cache_holds(cache: KVCache, decoder: Decoder, tokens: Sequence[int]) -> None:
    """The cache holds exactly what a fresh prefill of `tokens` would write."""
    assert cache.length == len(tokens)
    fresh = fresh_cache(decoder, tokens)
    for layer, (ours, theirs) in enumerate(zip(cache.layers, fresh.layers, strict=True)):
        for name in ours:
            difference = (ours[name][:, : len(tokens)] - theirs[name][:, : len(tokens)]).abs()
            assert len(tokens) == 0 or float(difference.max()) < 2e-4, f"layer {layer} {name}"


def check_every_step(generator: SpeculativeDecoding) -> SpeculativeDecoding:
    """Before every proposal: the target's cache holds all committed tokens but the last, and nothing else counts."""
    propose = generator.drafter.propose

    def checked(budget: int) -> Draft:
        request = generator.drafter.request  # type: ignore[attr-defined]
        assert_cache_holds(request.target.cache, request.target.decoder, request.committed[:-1])
        return propose(budget)

    generator.drafter.propose = checked  # type: ignore[method-assign]
    return generator


@dataclass
class Scripted(DrafterBase):
    """Asks a function of (committed tokens, budget) for every draft and remembers what it was shown."""

    script: Callable[[list[int], int], Draft]
    wanted: Needs = field(default_factory=Needs)
    seen: list[tuple[Verdict, VerifyResult]] = field(default_factory=list)
    budgets: list[int] = field(default_factory=list)

    def needs(self) -> Needs:
        return self.wanted

    def propose(self, budget: int) -> Draft:
        self.budgets.append(budget)
        return self.script(self.request.committed, budget)

    def observe(self, verdict: Verdict, result: VerifyResult) -> None:
        self.seen.append((verdict, result))


def chain(tokens: Sequence[int], **fields: Any) -> Draft:
    return Draft(tokens=torch.tensor(list(tokens), dtype=torch.int64), **({"spine": len(tokens)} | fields))


def knows(answer: Sequence[int], prompt: Sequence[int] = PROMPT) -> Callable[[Sequence[int], int], list[int]]:
    """(committed, n) -> the next n tokens of `answer`."""
    return lambda committed, count: list(answer[len(committed) - len(prompt) :][:count])
