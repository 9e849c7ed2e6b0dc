"""KnapSpec against plain decoding, its searches included, and without each of its precautions."""

from __future__ import annotations

from collections.abc import Sequence

from .answers import Answer, ask, drafting, given_by, speedup
from .measure import Bound, Figure, halves_differ
from .stage import Settings, Stage

OVER_AR = Bound(">=", 0.95)
METHODS = ("ar", "knapspec")
VARIANTS = {
    "without guard": ("method.guard=none",),
    "without bound": ("method.alpha_estimate=mean",),
    "without search budget": ("method.search_budget=null",),
    "without all three": ("method.guard=none", "method.alpha_estimate=mean", "method.search_budget=null"),
}


def self_speculation(stage: Stage, settings: Settings) -> list[Figure]:
    """Pooled speedup over AR; the methods take turns in being first, variants answer some of the prompts only."""
    generators = {"ar": stage.generator("ar"), "knapspec": stage.generator("knapspec")}
    generators |= {name: stage.generator("knapspec", *overrides) for name, overrides in VARIANTS.items()}
    for generator in generators.values():
        generator.generate(stage.prompt(64), max_new_tokens=8, seed=0)
    answers: list[Answer] = []
    probes: list[float] = []
    for number, (kind, sample) in enumerate(stage.mixture(settings.samples)):
        probes.append(stage.session.probe())
        prompt = stage.encode(sample)
        stage.prefixes.of(prompt[:-1])
        for name in _turns(number, variants=number < settings.variant_samples):
            generators[name].reset()  # as `method.scope=sample` does
            label = (kind, sample.id, name)
            answers.append(ask(stage, generators[name], label, (prompt, settings.sample_tokens)))
        stage.prefixes.clear()
    return figures(answers, noisy=halves_differ(probes))


def _turns(number: int, *, variants: bool) -> tuple[str, ...]:
    names = (*METHODS, *VARIANTS) if variants else METHODS
    turn = number % len(names)
    return names[turn:] + names[:turn]


def figures(answers: Sequence[Answer], *, noisy: bool) -> list[Figure]:
    """Speed and conduct of KnapSpec over all prompts, by kind, and of its variants over theirs."""
    own = given_by(answers, "knapspec").values()
    rows = [_speedup(answers, "knapspec over ar, search included", ("knapspec", OVER_AR), noisy=noisy)]
    done = drafting(own)
    rows += [
        Figure("steps that speculated", done["speculating_steps_%"], "%", None, noisy, _same(answers, "knapspec")),
        Figure("tokens from steps that speculated", done["speculated_tokens_%"], "%", None, noisy),
        Figure("decode time spent on searches and states", done["adapting_%"], "%", None, noisy),
    ]
    for kind in dict.fromkeys(answer.kind for answer in answers):
        chosen = [answer for answer in answers if answer.kind == kind]
        rows.append(_speedup(chosen, f"knapspec over ar, {kind}", ("knapspec", None), noisy=noisy))
    some = set(given_by(answers, next(iter(VARIANTS))))
    few = [answer for answer in answers if answer.prompt in some]
    rows.append(_speedup(few, "knapspec over ar, the variants' prompts", ("knapspec", None), noisy=noisy))
    return rows + [_speedup(few, f"{name}, over ar", (name, None), noisy=noisy) for name in VARIANTS]


def _speedup(answers: Sequence[Answer], name: str, pair: tuple[str, Bound | None], *, noisy: bool) -> Figure:
    method, required = pair
    made = speedup(answers, name, (method, "ar", required), noisy=noisy)
    detail = {**made.detail, **drafting(given_by(answers, method).values())}
    return Figure(made.name, made.value, made.unit, made.required, made.noisy, detail)


def _same(answers: Sequence[Answer], method: str) -> dict[str, str]:
    own, baseline = given_by(answers, method), given_by(answers, "ar")
    return {"same_as_ar": f"{sum(own[p].ids == baseline[p].ids for p in own)}/{len(own)}"}
