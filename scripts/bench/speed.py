"""AR against the library and against its own linear layers, and the cost of verifying T tokens."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from specbench.hardware.profile import LENGTHS
from specbench.models.decoder import Decoder
from specbench.types import Generator

from .measure import Bound, Figure, Medians, figure, in_turns, timed
from .stage import Settings, Stage

AR_SPEEDUP = {200: 1.45, 1024: 1.7, 4096: 2.3}  # context -> least speed of ar over hf_ar
FLOOR_RATIO = {200: 1.5, 1024: 1.65}  # context -> most time of a step over its linear layers alone
EIGHT_ROWS = {200: 1.35, 4096: 1.65}  # context -> most t(8) / t(1)
ORDER = Bound("<=", 1.03)
_SHORT = tuple(length for length in LENGTHS if length <= 11)  # cheap, and compared to within 3 %
_LONG = tuple(length for length in LENGTHS if length > 11)
_SHORT_FACTOR = 3  # short passes are measured this many times as often


def per_token(generator: Generator, prompt: Sequence[int], tokens: int) -> float:
    """Decode seconds a token."""
    answer = generator.generate(prompt, max_new_tokens=tokens, seed=0)
    return answer.decode_s / len(answer.tokens)


def ar_against_library(stage: Stage, settings: Settings) -> list[Figure]:
    """Seconds a token of ar and hf_ar after prompts of several lengths, and their ratio."""
    generators = {name: stage.generator(name) for name in ("ar", "hf_ar")}
    figures = []
    for context in settings.contexts:
        prompt = stage.prompt(context)
        actions = {
            name: functools.partial(per_token, generator, prompt, settings.new_tokens)
            for name, generator in generators.items()
        }
        stage.prefixes.of(prompt[:-1])
        samples = in_turns(actions, settings.rounds)
        stage.prefixes.clear()
        where = f"at {context}"
        figures += [_milliseconds(f"{name} {where}", samples, name) for name in generators]
        required = _bound(">=", AR_SPEEDUP, context)
        figures.append(figure(f"ar over hf_ar {where}", samples, _ratio("hf_ar", "ar"), unit="x", required=required))
    return figures


def floor(stage: Stage, settings: Settings) -> list[Figure]:
    """A step of ar over its own linear layers run alone on one row, with tokens/s and what the floor would allow."""
    generator = stage.generator("ar")
    contexts = [context for context in settings.contexts if context in FLOOR_RATIO] or list(settings.contexts)
    layers = functools.partial(_linears_alone, linear_calls(stage.decoder), settings.new_tokens)
    actions: dict[str, Callable[[], float]] = {"linear layers": layers}
    for context in contexts:
        prompt = stage.prompt(context)
        actions[f"{context}"] = functools.partial(per_token, generator, prompt, settings.new_tokens)
    samples = in_turns(actions, settings.rounds)
    stage.prefixes.clear()
    figures = [_milliseconds("linear layers alone", samples, "linear layers")]
    figures.append(figure("tokens/s the linear layers allow", samples, _rate("linear layers"), unit="tokens/s"))
    for context in contexts:
        ratio = _ratio(f"{context}", "linear layers")
        required = _bound("<=", FLOOR_RATIO, context)
        figures.append(figure(f"tokens/s of ar at {context}", samples, _rate(f"{context}"), unit="tokens/s"))
        figures.append(figure(f"ar step over its floor at {context}", samples, ratio, unit="x", required=required))
    return figures


def linear_calls(decoder: Decoder, num_rows: int = 1, dtype: torch.dtype | None = None) -> list[Callable[[], object]]:
    """One call for every linear layer of a step, each on `num_rows` rows of `dtype` (default: the model's)."""
    spec = decoder.spec
    inputs = [spec.hidden_size, spec.num_heads * spec.head_dim, spec.hidden_size, spec.intermediate_size]
    widths = [*inputs * spec.num_layers, spec.hidden_size]
    rows = {width: torch.randn(1, num_rows, width).to(dtype or decoder.dtype) for width in set(widths)}
    return [functools.partial(linear, rows[width]) for linear, width in zip(decoder.linears(), widths, strict=True)]


@torch.inference_mode()
def _linears_alone(calls: Sequence[Callable[[], object]], repeats: int) -> float:
    def once() -> None:
        for call in calls:
            call()

    return timed(lambda: [once() for _ in range(repeats)]) / repeats


def verify_cost(stage: Stage, settings: Settings) -> list[Figure]:
    """t(T) behind several contexts, that it does not fall with T, and what eight tokens cost."""
    figures = []
    stage.target.noise(max(settings.contexts) + max(LENGTHS))
    for context in settings.contexts:
        short = in_turns(_passes(stage, context, _SHORT), _SHORT_FACTOR * settings.rounds)
        long = in_turns(_passes(stage, context, _LONG), settings.rounds)
        samples = {**short, **long}
        figures += [_milliseconds(f"t({length}) at {context}", samples, str(length)) for length in LENGTHS]
        figures += [
            figure(f"t({a}) over t({b}) at {context}", samples, _ratio(a, b), unit="x", required=ORDER)
            for a, b in (("1", "2"), ("2", "8"))
        ]
        required = _bound("<=", EIGHT_ROWS, context)
        figures.append(figure(f"t(8) over t(1) at {context}", samples, _ratio("8", "1"), unit="x", required=required))
    return figures


def _passes(stage: Stage, context: int, lengths: Sequence[int]) -> dict[str, Callable[[], float]]:
    def once(rows: int) -> float:
        return timed(lambda: stage.verify(context=context, rows=rows))

    return {str(length): functools.partial(once, length) for length in lengths}


def _bound(sense: str, limits: dict[int, float], context: int) -> Bound | None:
    return Bound(sense, limits[context]) if context in limits else None


def _milliseconds(name: str, samples: dict[str, list[float]], key: str) -> Figure:
    return figure(name, samples, lambda medians: 1e3 * medians[key], unit="ms")


def _ratio(above: str, below: str) -> Callable[[Medians], float]:
    return lambda medians: medians[above] / medians[below]


def _rate(key: str) -> Callable[[Medians], float]:
    return lambda medians: 1.0 / medians[key]
