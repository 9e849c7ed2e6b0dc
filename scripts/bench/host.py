"""The share of decode time that is spent outside the model's forward calls."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from specbench.models.decoder import Decoder
from specbench.types import Generator

from .measure import Bound, Figure, figure, in_turns
from .stage import Settings, Stage, code_editing

REQUIRED = Bound("<", 3.0)  # percent
METHODS = ("ar", "pld")
CONTEXT = 1024


@contextmanager
def forward_seconds(decoder: Decoder) -> Iterator[list[float]]:
    """Seconds of every forward call inside the body."""
    own, seconds = decoder.forward, []

    @functools.wraps(own)
    def forward(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return own(*args, **kwargs)
        finally:
            seconds.append(time.perf_counter() - start)

    decoder.forward = forward  # type: ignore[method-assign]
    try:
        yield seconds
    finally:
        del decoder.forward  # the class's own comes back


def host_share(stage: Stage, settings: Settings) -> list[Figure]:
    """Percent of decode time outside forward calls, drafting by lookup included, on a code-editing prompt."""
    prompt = stage.encode(code_editing(CONTEXT)[0])
    stage.prefixes.of(prompt[:-1])
    generators = {name: stage.generator(name) for name in METHODS}
    actions = {
        name: functools.partial(_percent, stage.decoder, generator, prompt, settings.answer_tokens)
        for name, generator in generators.items()
    }
    samples = in_turns(actions, max(2, settings.rounds // 2))
    stage.prefixes.clear()
    return [
        figure(f"host share of {name}", samples, lambda m, name=name: m[name], unit="%", required=REQUIRED)
        for name in METHODS
    ]


def _percent(decoder: Decoder, generator: Generator, prompt: Sequence[int], tokens: int) -> float:
    with forward_seconds(decoder) as seconds:  # the prompt is in the cache: all of these calls are decode steps
        answer = generator.generate(prompt, max_new_tokens=tokens, seed=0)
    return 100.0 * (1.0 - sum(seconds) / answer.decode_s)
