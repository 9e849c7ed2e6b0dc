"""Look for the sublayers to leave out on held-out samples, and measure on further ones what the found set is worth."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.analysis.skipping import STANDING
from specbench.config import MethodConfig
from specbench.hardware.latency import ProfilePlan
from specbench.methods.draft_plan import CostModel, first_best, tokens_per_time
from specbench.methods.layer_skip import LayerSkipDrafter, counts
from specbench.recording import sample_seed
from specbench.runner.session import Session
from specbench.types import ConfigError, Generation, Generator, Sample, SpecbenchError, StepRecord

log = logging.getLogger(__name__)

MAX_PASSES = 3  # over the samples, while the search has not ended
# What a choice says about its set, as far as the method knows it.
_SCORES = (
    "opt_iter",
    "active",
    "matchness",
    "best_accepted",
    "predicted_acceptance",
    "predicted_tokens_per_second",
    "plain_tokens_per_second",
    "planned_length",
)


@dataclass(frozen=True)
class Found:
    """A skip set, whether its search ended by its own rules, and what the search knew about the set."""

    skip: frozenset[int]
    ended: bool
    num_prompts: int
    scores: Mapping[str, Any]

    def card(self) -> dict[str, Any]:
        """The same as plain values for a stored set."""
        return {
            **counts(self.skip),
            "search": {"ended": self.ended, "num_prompts": self.num_prompts, **self.scores},
        }


def check_searches(method: MethodConfig) -> None:
    """Raise ConfigError for a method that searches for no sublayers, before anything is loaded."""
    if not hasattr(method, "skip_set"):
        raise _no_search(method)
    if method.skip_set is not None:
        raise ConfigError(f"method.skip_set={method.skip_set}: a set that is given is not searched for; leave it out")


def _no_search(method: MethodConfig) -> ConfigError:
    return ConfigError(f"method={method.name}: does not search for sublayers here; use swift, confl or knapspec")


def search(session: Session, samples: Sequence[Sample]) -> Found:
    """Decode the first turns of `samples`, at most MAX_PASSES times, until the method's search ends.

    What is learnt goes from prompt to prompt whatever `method.scope` says. ConfigError for a method that does not
    search for sublayers, SpecbenchError when nothing was found.
    """
    drafter = getattr(session.method, "drafter", None)
    if not isinstance(drafter, LayerSkipDrafter) or not drafter.searches:
        raise _no_search(session.config.method)
    seen: list[Mapping[str, Any]] = []
    prompts = 0
    for sample in list(samples) * MAX_PASSES:
        found = _decode(session, session.method, sample)
        seen += [record.values for record in found.choices if record.values.get("reason") not in STANDING]
        prompts += 1
        log.info("%s: %d choices so far", sample.id, len(seen))
        if seen and seen[-1].get("active") is False:
            break
    return _chosen(drafter, seen, prompts)


def _chosen(drafter: LayerSkipDrafter, seen: Sequence[Mapping[str, Any]], prompts: int) -> Found:
    """By prediction where the method makes one, else what the method itself would keep."""
    priced = [values for values in seen if values["sublayers"] and values["predicted_tokens_per_second"]]
    best = max(priced, key=lambda values: values["predicted_tokens_per_second"], default=None)
    skip = drafter.best() if best is None else frozenset(best["sublayers"])
    if not seen or not skip:
        raise SpecbenchError(
            f"{prompts} prompts and {len(seen)} choices left no set that is worth keeping; take more samples "
            "(num_samples=N) or tokens (sampling.max_new_tokens=N)"
        )
    last = best or seen[-1]  # where there is no prediction, the last row knows the best score
    scores = {name: last[name] for name in _SCORES if last.get(name) is not None}
    return Found(skip, seen[-1].get("active") is False, prompts, scores)


def check(session: Session, skip: Iterable[int], samples: Sequence[Sample]) -> dict[str, Any]:
    """What drafting without `skip` is worth on `samples`: measured acceptance, and tokens per time at this machine's
    latencies by the formula of KnapSpec, with that acceptance."""
    method = dataclasses.replace(session.config.method, skip_set=sorted(skip))  # type: ignore[call-arg]
    generator = session.build(method)
    steps = list(_steps(_decode(session, generator, sample) for sample in samples))
    drafted, accepted = sum(s.num_draft_tokens or 0 for s in steps), sum(s.num_accepted_spine for s in steps)
    rate = accepted / drafted if drafted else 0.0
    context = sum(step.context_length for step in steps) // len(steps)
    return {
        "num_prompts": len(samples),
        "acceptance_rate": rate,
        "mat": sum(step.num_emitted for step in steps) / len(steps),
        "draft_tokens_per_step": drafted / len(steps),
        **_predicted(session, frozenset(skip), rate, context),
    }


def _predicted(session: Session, skip: frozenset[int], acceptance: float, context: int) -> dict[str, Any]:
    latency = session.latency(ProfilePlan())
    costs = CostModel(latency, session.model.spec.num_layers, session.curve)
    cap = int(getattr(session.config.method.controller, "num_draft_tokens", 1))
    priced = costs(context, [skip], cap)
    choice = first_best(tokens_per_time([acceptance], priced), (1, cap))
    return {
        "context": context,
        "draft_cost": float(priced.draft[0] / priced.verify[0]),
        "predicted_draft_length": choice.length,
        "predicted_tokens_per_second": choice.rate,
        "plain_tokens_per_second": priced.plain_rate,
        "latency_noisy": latency.noisy,
    }


def _steps(found: Iterable[Generation]) -> Iterator[StepRecord]:
    for generation in found:
        yield from generation.steps or ()


def _decode(session: Session, generator: Generator, sample: Sample) -> Generation:
    config = session.config
    tokens = session.encode_question(sample.turns[0], raw=sample.raw)
    return generator.generate(
        tokens,
        max_new_tokens=config.answer_tokens,
        seed=sample_seed(config.seed, sample.id, 0, 0),
        stop_ids=session.model.stop_ids,
    )
