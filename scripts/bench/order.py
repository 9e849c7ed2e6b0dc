"""Methods that learn over a whole run: the same samples in several orders."""

from __future__ import annotations

import random
from collections.abc import Sequence

from specbench.types import Generator, Sample

from .answers import Answer, ask, drafting, given_by, speedup
from .measure import Figure, halves_differ
from .stage import Settings, Stage

# Small windows, so that the searches run within a few short answers.
METHODS = {
    "confl": ("method.context_window=32", "method.search_interval=8", "method.skip_ratio=0.15"),
    "swift": ("method.context_window=32",),
}

Work = Sequence[tuple[str, Sample]]


def order(stage: Stage, settings: Settings) -> list[Figure]:
    """Speedup over AR, taken beside every answer, and acceptance for every order of the samples."""
    generators = {"ar": stage.generator("ar")}
    generators |= {name: stage.generator(name, *overrides) for name, overrides in METHODS.items()}
    for generator in generators.values():
        generator.generate(stage.prompt(64), max_new_tokens=8, seed=0)
    work, probes = stage.mixture(settings.order_samples), [stage.session.probe()]
    by_order = []
    for number in range(settings.orders):
        by_order.append(answered(stage, generators, shuffled(work, number), settings.order_tokens))
        probes.append(stage.session.probe())
    return figures(by_order, noisy=halves_differ(probes))


def shuffled(work: Work, number: int) -> Work:
    """The samples as they come, and then in orders drawn from the number of the order."""
    order = list(work)
    if number:
        random.Random(number).shuffle(order)
    return order


def answered(stage: Stage, generators: dict[str, Generator], work: Work, tokens: int) -> list[Answer]:
    """All methods' answers to the samples in this order, from a fresh start."""
    for generator in generators.values():
        generator.reset()
    answers = []
    for number, (kind, sample) in enumerate(work):
        prompt = stage.encode(sample)
        stage.prefixes.of(prompt[:-1])
        names = list(generators)[:: 1 if number % 2 == 0 else -1]
        answers += [ask(stage, generators[name], (kind, sample.id, name), (prompt, tokens)) for name in names]
        stage.prefixes.clear()
    return answers


def figures(by_order: Sequence[Sequence[Answer]], *, noisy: bool) -> list[Figure]:
    """One row a method and order, and how far the orders of a method are apart."""
    rows = []
    for method in METHODS:
        own = []
        for number, answers in enumerate(by_order):
            name = f"{method} over ar, " + ("as they come" if number == 0 else f"shuffled {number}")
            made = speedup(answers, name, (method, "ar", None), noisy=noisy)
            detail = {**made.detail, **drafting(given_by(answers, method).values())}
            own.append(Figure(name, made.value, "x", None, noisy, detail))
        values = [row.value for row in own]
        acceptance = [row.detail["acceptance"] or 0.0 for row in own]
        apart = {"acceptance_apart": max(acceptance) - min(acceptance)}
        rows += [
            *own,
            Figure(f"{method}: fastest over slowest order", max(values) / min(values), "x", None, noisy, apart),
        ]
    return rows
