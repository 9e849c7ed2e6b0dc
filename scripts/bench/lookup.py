"""Prompt lookup against AR and against the library's own, on prompts that are worth looking up in."""

from __future__ import annotations

from collections.abc import Sequence

from specbench.tasks import select

from .answers import Answer, ask, given_by, speedup
from .measure import Bound, Figure, halves_differ
from .stage import Settings, Stage, code_editing

METHODS = ("ar", "pld", "pld_official", "hf_pld")
OVER_AR, OVER_LIBRARY = Bound(">=", 1.2), Bound(">=", 1.3)
CONTEXT = 1024
_LIBRARY_EVERY = 2  # the library verifies so slowly in bfloat16 that it answers every second prompt of a kind only


def lookup(stage: Stage, settings: Settings) -> list[Figure]:
    """Pooled speedups with intervals over prompts; the methods take turns in being first."""
    set_name, articles = stage.samples("cnn_dm")
    prompts = [(set_name, sample) for sample in select(articles, settings.prompts)]
    prompts += [("code_editing", sample) for sample in select(code_editing(CONTEXT), settings.prompts)]
    generators = {name: stage.generator(name) for name in METHODS}
    for generator in generators.values():
        generator.generate(stage.prompt(64), max_new_tokens=8, seed=0)
    answers: list[Answer] = []
    probes: list[float] = []
    for number, (kind, sample) in enumerate(prompts):
        probes.append(stage.session.probe())
        prompt = stage.encode(sample)
        stage.prefixes.of(prompt[:-1])
        for name in _turns(number, number % settings.prompts):
            generators[name].reset()  # as `method.scope=sample` does
            label = (kind, sample.id, name)
            answers.append(ask(stage, generators[name], label, (prompt, settings.answer_tokens)))
        stage.prefixes.clear()
    return figures(answers, noisy=halves_differ(probes))


def _turns(number: int, place: int) -> tuple[str, ...]:
    """The methods of a prompt, each first as often as the others; `place`: the prompt's number within its kind."""
    turn = number % len(METHODS)
    names = METHODS[turn:] + METHODS[:turn]
    return tuple(name for name in names if name != "hf_pld" or place % _LIBRARY_EVERY == 0)


def figures(answers: Sequence[Answer], *, noisy: bool) -> list[Figure]:
    """Rows for every method over all prompts, then one a kind; `noisy`: the machine's own speed drifted."""
    rows = [_speed(answers, name, noisy=noisy) for name in METHODS]
    for name, base, required in (
        ("pld", "ar", OVER_AR),
        ("pld", "hf_pld", OVER_LIBRARY),
        ("pld_official", "ar", None),
        ("hf_pld", "ar", None),
    ):
        rows.append(speedup(answers, f"{name} over {base}, pooled", (name, base, required), noisy=noisy))
    for kind in dict.fromkeys(answer.kind for answer in answers):
        chosen = [answer for answer in answers if answer.kind == kind]
        rows += [
            speedup(chosen, f"{name} over ar, {kind}", (name, "ar", None), noisy=noisy)
            for name in METHODS
            if name != "ar"
        ]
    return rows


def _speed(answers: Sequence[Answer], method: str, *, noisy: bool) -> Figure:
    own, baseline = list(given_by(answers, method).values()), given_by(answers, "ar")
    tokens = sum(answer.tokens for answer in own)
    steps = [answer.steps for answer in own if answer.steps is not None]
    same = sum(answer.ids == baseline[answer.prompt].ids for answer in own)
    detail = {"tokens": tokens, "mat": tokens / sum(steps) if steps else None, "same_as_ar": f"{same}/{len(own)}"}
    return Figure(f"tokens/s of {method}", tokens / sum(a.seconds for a in own), "tokens/s", None, noisy, detail)
