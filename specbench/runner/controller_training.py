"""Controllers that belong to a pair: collect steps on held-out prompts, fit, choose length or threshold by replay."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specbench.analysis.replay import LENGTHS, Costs, Threshold, Trace, replay, tuned_length
from specbench.config import RunConfig
from specbench.config.controllers import FixedConfig
from specbench.controllers.fixed import FixedLength
from specbench.controllers.heads import log_probability, scalar_features
from specbench.controllers.trained import ScalarStop, SpecDecPP, residual_head, scalar_head
from specbench.decoding.loop import SpeculativeDecoding
from specbench.decoding.protocol import Controller
from specbench.hardware.profile import VerifyCurve, seconds
from specbench.methods.build import artefact_key
from specbench.models.artefact import Artefact, Key
from specbench.runner.held_out import held_out
from specbench.runner.session import Session
from specbench.training.heads import FitOptions, fit_scalars, fit_specdecpp, held_out_prompts
from specbench.training.rollouts import Rollouts, collect, load_rollouts
from specbench.types import ConfigError, ModelError, StepRecord

KINDS = ("tuned", "scalars", "specdecpp")
_TIMED_TURN = "Describe how a river becomes a canyon, step by step."
_TIMED_ANSWERS = 3
_TIMED_TOKENS = 6  # of a draft: about what pays. A longer one repeats itself, which makes phrases cheap
THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(1, 20))

# (tokens of one draft from some token on, first row and last row) -> the rule's score after each of them
Scores = Callable[[slice], Sequence[float]]


def rollouts(
    config: RunConfig, session: Session, prompts: Sequence[Sequence[int]], *, num_draft_tokens: int
) -> Rollouts:
    """Steps of the configured method on `prompts`, with drafts of `num_draft_tokens` tokens."""
    return collect(
        _generator(config, session),
        prompts,
        num_draft_tokens=num_draft_tokens,
        max_new_tokens=config.answer_tokens,
        stop_ids=sorted(session.model.stop_ids),
        seed=config.seed,
        forget=config.method.scope == "sample",
        context=getattr(config.method.controller, "scope", "step") == "context",
        meta={"model": session.model.name, "method": config.method.name, "task": config.task.name},
    )


def _generator(config: RunConfig, session: Session) -> SpeculativeDecoding:
    """The configured method, whose controller is to be replaced."""
    method = dataclasses.replace(config.method, controller=_any_length(config))
    generator = session.build(method)
    if not isinstance(generator, SpeculativeDecoding):
        raise ConfigError(f"method={config.method.name} shows no steps, so there is nothing to train a controller on")
    return generator


def held_out_rollouts(
    config: RunConfig, session: Session, *, prompts: Path | None, num_draft_tokens: int, kept: Path | None
) -> Rollouts:
    """Steps on held-out prompts: read from the file `kept` if it is there, else collected and, with a name, kept."""
    if kept is not None and kept.is_file():
        return load_rollouts(kept)
    data = rollouts(config, session, held_out(config, session, prompts), num_draft_tokens=num_draft_tokens)
    if kept is not None:
        data.save(kept)
    return data


def _any_length(config: RunConfig) -> Any:
    """A controller that can be built before anything was trained; collecting replaces it."""
    if config.method.controller.name == "none":
        raise ConfigError(f"method={config.method.name} takes no controller")
    return FixedConfig(_target_="specbench.controllers.fixed.FixedLength", name="fixed", num_draft_tokens=1)


def train(kind: str, config: RunConfig, session: Session, data: Rollouts, **options: Any) -> Artefact:
    """The artefact of one kind for what the session runs; lengths and thresholds are chosen for its costs."""
    key, timed = artefact_key(config.method, session.parts), timed_tokens(data)
    if kind == "tuned":
        return _tuned(key, data, *measured_costs(config, session, [FixedLength(timed)]))
    fit_options = FitOptions(epochs=20) if kind == "scalars" else FitOptions(reject_weight=6.0)
    fitted = (fit_scalars if kind == "scalars" else fit_specdecpp)(data, key, options=fit_options, **options)
    (costs,) = measured_costs(config, session, [_asked_of_all(fitted, timed)])
    return _with_threshold(fitted, data, held_out_prompts(data.prompt, fit_options), costs)


def measured_costs(config: RunConfig, session: Session, controllers: Sequence[Controller]) -> list[Costs]:
    """What a drafted token takes under each rule (the signals that it asks for and its own work), and a target pass.

    Both are measured now, in the running decoder, the rules in turn: the median step's drafting over its tokens, and
    how much longer or shorter its verifying took than the stored curve says, whose shape alone is kept. A shared
    machine changes its speed by half from hour to hour, and lengths depend on the ratio of the two. ModelError where
    the method drafts nothing.
    """
    generator = _generator(config, session)
    drafter: Any = generator.drafter
    prompt = session.encode_question(_TIMED_TURN)
    found: list[list[StepRecord]] = [[] for _ in controllers]
    for answer in range(1 + _TIMED_ANSWERS):
        for controller, steps in zip(controllers, found, strict=True):
            drafter.controller = controller
            if config.method.scope == "sample":  # or its phrases would know the answer from the time before
                generator.reset()
            answered = generator.generate(prompt, max_new_tokens=config.answer_tokens, seed=config.seed)
            if answer > 0:  # the first one warms up
                steps += [step for step in answered.steps or () if step.num_draft_tokens]
    if not all(found):
        raise ModelError(
            f"method={config.method.name} drafted nothing behind a plain question, so what a drafted token takes is "
            "not known and no controller can be tuned for it"
        )
    slower = statistics.median(_over_stored(session.curve, step) for steps in found for step in steps)
    drafting = [statistics.median(step.draft_s / (step.num_draft_tokens or 1) for step in steps) for steps in found]
    return [Costs(draft_s, session.curve.times(slower)) for draft_s in drafting]


def timed_tokens(data: Rollouts) -> int:
    """The tokens of a draft in which costs are measured."""
    return min(_TIMED_TOKENS, int(data.index.max()))


def _over_stored(curve: VerifyCurve, step: StepRecord) -> float:
    """The time of a step's target pass over what the stored curve says of as many rows."""
    return step.verify_s / seconds(curve, 1 + step.num_tree_tokens + step.num_passengers)


def _asked_of_all(fitted: Artefact, num_draft_tokens: int) -> Controller:
    """The trained rule, which never stops before so many tokens."""
    shared: dict[str, Any] = {"num_draft_tokens": num_draft_tokens, "threshold": 0.0}
    if fitted.kind == "scalars":
        return ScalarStop(head=scalar_head(fitted), **shared)
    return SpecDecPP(head=residual_head(fitted), state=str(fitted.key["state"]), **shared)


def _tuned(key: Key, data: Rollouts, costs: Costs) -> Artefact:
    length, outcomes = tuned_length(traces(data), costs, [n for n in LENGTHS if n <= int(data.index.max())])
    numbers = {str(n): outcome.numbers() for n, outcome in outcomes.items()}
    card = {"outcomes": numbers, "data": dict(data.meta), "measured": {"draft_s": costs.draft}}
    return Artefact("tuned", key, {"num_draft_tokens": length}, card)


def _with_threshold(fitted: Artefact, data: Rollouts, prompts: Tensor, costs: Costs) -> Artefact:
    """The artefact with the threshold that gives most tokens per predicted second on held-out prompts."""
    held = traces(data, score_with(fitted, data), only=prompts)
    cap = int(data.index.max())
    outcomes = {t: replay(held, Threshold(cap, threshold=t), costs) for t in THRESHOLDS}
    best = max(outcomes, key=lambda t: outcomes[t].tokens_per_second or 0.0)
    fixed, _ = tuned_length(held, costs, [n for n in LENGTHS if n <= cap])
    card = {
        **fitted.card,
        "replay": {str(t): outcome.numbers() for t, outcome in outcomes.items()},
        "fixed_on_the_same": {"num_draft_tokens": fixed},
        "measured": {"draft_s": costs.draft},
    }
    return dataclasses.replace(fitted, values={**fitted.values, "threshold": best}, card=card)


def score_with(fitted: Artefact, data: Rollouts) -> Scores:
    """What the fitted rule says after each token of a draft: the chance that everything so far is accepted."""
    head = (scalar_head if fitted.kind == "scalars" else residual_head)(fitted)
    own = fitted.key.get("state") == "own"

    def scores(rows: slice) -> Sequence[float]:
        chances = head.probability(_features(fitted.kind, data, rows))
        if own:
            chances[0] = 1.0
        judged = chances if fitted.values["label"] == "survive" else chances.cumprod(0)
        return [float(chance) for chance in judged.tolist()]

    return scores


def _features(kind: str, data: Rollouts, rows: slice) -> Tensor:
    if kind != "scalars":
        return data.hidden[rows]
    index = torch.arange(1, rows.stop - rows.start + 1)
    return scalar_features(log_probability(data.prob[rows]), data.entropy[rows], data.margin[rows], index)


def traces(data: Rollouts, scores: Scores | None = None, *, only: Tensor | None = None) -> list[Trace]:
    """The answers of collected steps as replays take them; `only` some prompts."""
    rows = torch.searchsorted(data.step, torch.arange(len(data.step_prompt) + 1)).tolist()
    steps = [slice(first, last) for first, last in itertools.pairwise(rows)]
    prompts = data.step_prompt.unique() if only is None else only
    return [
        _trace(data, [steps[i] for i in _of(data, prompt)], _of(data, prompt), scores) for prompt in prompts.tolist()
    ]


def _of(data: Rollouts, prompt: int) -> list[int]:
    return [int(step) for step in (data.step_prompt == prompt).nonzero()[:, 0].tolist()]


def _emitted(data: Rollouts, rows: Sequence[slice], steps: Sequence[int]) -> list[int]:
    """Tokens of the answer that came from each step of a prompt; in older files the last step's bonus is not known."""
    if len(data.step_emitted):
        return [int(count) for count in data.step_emitted[list(steps)]]
    context, good = data.step_context[list(steps)].tolist(), int(data.accepted[rows[-1]].sum())
    return [*(b - a for a, b in itertools.pairwise(context)), good + (good < rows[-1].stop - rows[-1].start)]


def _trace(data: Rollouts, rows: Sequence[slice], steps: Sequence[int], scores: Scores | None) -> Trace:
    right: list[bool] = []
    unknown = 0
    known: dict[int, Sequence[float]] = {}
    for own, emitted in zip(rows, _emitted(data, rows, steps), strict=True):
        drafted, good = own.stop - own.start, int(data.accepted[own].sum())
        if scores is not None:
            for place in range(min(good + 1, drafted)):
                known[len(right) + place] = scores(slice(own.start + place, own.stop))
        unknown += emitted > good == drafted
        right += [True] * good + [good == drafted] * (emitted - good)
    return Trace(np.array(right, dtype=bool), unknown, int(data.meta["max_new_tokens"]), known)
