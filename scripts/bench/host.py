"""The share of decode time that is spent outside the model's forward calls."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from specbench.models.decoder import Decoder
from specbench.types import Generator

from .answers import ask, drafting
from .measure import Bound, Figure, Medians, figure, in_turns
from .search import ALWAYS_DRAFTS
from .stage import Settings, Stage, code_editing

REQUIRED = Bound("<", 3.0)  # percent
REQUIRED_SKIPPING = Bound("<", 5.0)
METHODS = ("ar", "pld")
CONTEXT, SKIPPING_CONTEXT = 1024, 200
# So that all of them draft and search within a short answer; a method's own guess of what pays is not the question.
SKIPPING = {
    "knapspec": (
        *ALWAYS_DRAFTS,
        "method.guard=none",
        "method.search_budget=null",
        "method.window_tokens=16",
        "method.interval_tokens=16",
        "method.double_interval=false",
    ),
    "confl": ("method.context_window=16", "method.search_interval=8", "method.skip_ratio=0.15"),
    "swift": ("method.context_window=16", "method.opt_interval=4"),
    "clasp": ("method.optimize_interval=16",),
    # Without rows of the prompt: reading those is no part of decoding.
    "del": ("method.planned_length_min=1", "method.prompt_shadow_columns=0"),
}
_PARTS = ("forward", "sublayer", "head")  # what methods call of a decoder


@contextmanager
def model_seconds(decoder: Decoder) -> Iterator[list[float]]:
    """Seconds of every call of the model inside the body: whole passes, single sublayers and heads of searches."""
    before, seconds = dict(vars(decoder)), []
    inside = False

    def clocked(own: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            if inside:  # a part of a call that is timed already
                return own(*args, **kwargs)
            inside, start = True, time.perf_counter()
            try:
                return own(*args, **kwargs)
            finally:
                inside = False
                seconds.append(time.perf_counter() - start)

        return call

    for name in _PARTS:
        setattr(decoder, name, clocked(getattr(decoder, name)))
    try:
        yield seconds
    finally:
        for name in _PARTS:
            delattr(decoder, name)  # the class's own come back
        vars(decoder).update({name: before[name] for name in _PARTS if name in before})


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


def host_share_skipping(stage: Stage, settings: Settings) -> list[Figure]:
    """Percent of decode time outside the model for the self-drafting methods, with searches in every answer."""
    prompt = stage.prompt(SKIPPING_CONTEXT)
    figures = []
    for name, overrides in SKIPPING.items():
        generator = stage.generator(name, *overrides)
        details: dict[str, Any] = {}
        action = functools.partial(_percent_searching, stage, generator, (prompt, settings.host_tokens), details)
        shares = in_turns({name: action}, max(2, settings.rounds // 4))
        title = f"host share of {name}"
        value = functools.partial(_of, name)
        figures.append(figure(title, shares, value, unit="%", required=REQUIRED_SKIPPING, detail=details))
    stage.prefixes.clear()
    return figures


def _percent_searching(
    stage: Stage, generator: Generator, work: tuple[Sequence[int], int], details: dict[str, Any]
) -> float:
    prompt, tokens = work
    generator.reset()
    with model_seconds(stage.decoder) as seconds:
        answer = ask(stage, generator, ("", "", ""), (prompt, tokens))
    details |= drafting([answer])
    return 100.0 * (1.0 - sum(seconds) / answer.seconds)


def _of(name: str, medians: Medians) -> float:
    return medians[name]


def _percent(decoder: Decoder, generator: Generator, prompt: Sequence[int], tokens: int) -> float:
    with model_seconds(decoder) as seconds:  # the prompt is in the cache: all of these calls are decode steps
        answer = generator.generate(prompt, max_new_tokens=tokens, seed=0)
    return 100.0 * (1.0 - sum(seconds) / answer.decode_s)
