"""SWIFT on the tiny target: lossless whatever it skips, scores of the right tokens, the published search."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from specbench.decoding.target import Target
from specbench.methods.build import Parts, build_generator
from specbench.methods.swift_search import GaussianProcess, Proposal, SetSearch
from specbench.types import ConfigError, Sampling
from tests.composed import composed
from tests.decoding.tinies import PROMPT, ar_tokens, check_every_step, tiny_target

COUNT = 48
SMALL = ("method.context_window=6", "method.bayes=false", "method.max_score=1.0")  # one candidate a step, to the end


@functools.cache
def config(*changes: str) -> Any:
    return composed("model=tiny", *changes).method


def built(*changes: str, method: str = "swift", variant: str = "plain") -> Any:
    parts = Parts(target=Target(tiny_target(variant)), sampling=Sampling())
    return build_generator(config(f"method={method}", *SMALL, *changes), parts)


def generate(generator: Any, count: int = COUNT, prompt: Sequence[int] = PROMPT) -> Any:
    return generator.generate(prompt, max_new_tokens=count, seed=0)


@pytest.mark.parametrize("variant", ["plain", "zero"])
@pytest.mark.parametrize("nodes", [1, 131])
@pytest.mark.parametrize("method", ["swift", pytest.param("swift_official", marks=pytest.mark.slow)])
def test_greedy_answers_are_ars_while_the_search_runs(method, nodes, variant):
    generator = check_every_step(built(f"method.tree.max_nodes={nodes}", method=method, variant=variant))
    found = generate(generator)
    assert found.tokens == ar_tokens(COUNT, variant=variant)
    assert generator.drafter.search.opt_iter > 5
    assert found.choices


@pytest.mark.parametrize("controller", ["fixed", "heuristic"])
def test_any_controller_drafts(controller):
    found = generate(check_every_step(built(f"method/controller={controller}")))
    assert found.tokens == ar_tokens(COUNT)
    assert max(step.num_draft_tokens for step in found.steps) > 2


def test_bayesian_proposals_take_their_turns():
    generator = built("method.bayes=true", "method.bayes_interval=3")
    seen = watched(generator.drafter.search)
    assert generate(generator).tokens == ar_tokens(COUNT)
    assert [proposal.bayesian for proposal, _ in seen] == [(i + 1) % 3 == 0 for i in range(len(seen))]
    assert len(seen) > 6


def watched(search: SetSearch) -> list[tuple[Proposal, float]]:
    seen, judge = [], search.judge

    def noting(proposal: Proposal, score: float) -> bool:
        seen.append((proposal, score))
        return judge(proposal, score)

    search.judge = noting  # type: ignore[method-assign]
    return seen


def test_the_whole_model_predicts_all_of_its_own_tokens():
    generator = built()
    generate(generator)
    with torch.inference_mode():
        assert generator.drafter.matchness(frozenset()) == 1.0
        assert generator.drafter.matchness(frozenset(range(12))) < 1.0


def test_a_score_is_what_the_skipping_model_gets_right():
    generator = built("method.context_window=9", "method.search=false")
    generate(generator)
    committed, skip = generator.drafter.request.committed, frozenset({2, 5, 8})
    decoder, first = tiny_target(), len(PROMPT)
    cache = decoder.new_cache(len(committed))
    right = 0
    with torch.inference_mode():
        decoder.forward(torch.tensor([list(PROMPT)]), cache, start=0, logits="none")
        for place in range(9):  # one token after another, on the whole model's prompt
            ids = torch.tensor([[committed[first + place]]])
            out = decoder.forward(ids, cache, start=first + place, skip=skip)
            right += int(out.logits[0, 0].argmax()) == committed[first + place + 1]
        assert generator.drafter.matchness(skip) == pytest.approx(right / 9)


def test_a_better_set_is_installed_and_a_worse_one_is_not():
    generator = built()
    seen = watched(generator.drafter.search)
    found = generate(generator)
    best, kept, scores = 0.0, [], []
    for proposal, score in seen:
        if score > best:
            best = score
            kept.append(sorted(proposal.sublayers))
            scores.append(score)
    assert [choice.values["sublayers"] for choice in found.choices[1:]] == kept
    assert found.choices[0].values["reason"] == "initial"
    assert [choice.values["predicted_acceptance"] for choice in found.choices[1:]] == scores
    assert generator.drafter.search.best == best


def test_what_is_tried_and_not_installed_is_in_the_measured_time_too():
    generator = built()
    drafter, look, spent = generator.drafter, generator.drafter.look, []

    def slow(*arguments: Any, **options: Any) -> Any:
        spent.append(drafter._step)
        time.sleep(0.005)
        return look(*arguments, **options)

    drafter.look = slow
    found = generate(generator)
    rows = [choice for choice in found.choices if choice.values["search_s"] is not None]
    assert 0 < len(rows) < len(spent)
    assert all(found.steps[step].adapt_s >= 0.005 for step in spent)
    assert sum(choice.values["search_s"] for choice in rows) < sum(step.adapt_s for step in found.steps)


def test_candidates_are_tried_every_interval_once_there_is_text():
    drafter = built("method.opt_interval=3", "method.context_window=10").drafter
    generator = built("method.opt_interval=3", "method.context_window=10")
    drafter = generator.drafter
    steps, propose = [], drafter.search.propose

    def noting() -> Proposal:
        steps.append((drafter._step, drafter.num_generated))
        return propose()

    drafter.search.propose = noting
    generate(generator)
    assert {(step - 1) % 3 for step, _ in steps} == {0}
    assert all(generated > 11 for _, generated in steps)
    assert [b - a for (a, _), (b, _) in itertools.pairwise(steps)] == [3] * (len(steps) - 1)


def test_state_lives_until_a_reset():
    generator = built()
    first = generate(generator)
    again = generate(generator)
    assert again.choices[0].values["reason"] == "carried_over"
    assert again.choices[0].values["sublayers"] == first.choices[-1].values["sublayers"]
    generator.reset()
    assert generator.drafter.search.opt_iter == 0
    assert generate(generator).choices == first_without_times(first, generator)


def first_without_times(found: Any, generator: Any) -> Any:
    """The choices of a repeated first prompt, checked to be those of the first time but for their seconds."""
    again = generator.drafter.choices()
    for before, after in zip(found.choices, again, strict=True):
        same = {key: value for key, value in before.values.items() if key != "search_s"}
        assert same == {key: value for key, value in after.values.items() if key != "search_s"}
    return again


# ---- the search by itself


def search(**changes: Any) -> SetSearch:
    return SetSearch(
        **(
            {"num_layers": 6, "num_skip": 5, "seed": 1, "max_opt_iter": 9, "max_tolerance": 3, "max_score": 0.9}
            | changes
        )
    )


def test_candidates_have_so_many_inner_sublayers():
    made, seen = search(max_opt_iter=500), set()
    for _ in range(200):
        found = made.propose()
        assert len(found.sublayers) == 5
        assert found.sublayers <= set(range(2, 14))
        assert found.point.sum() == 5
        seen |= found.sublayers
    assert seen == set(range(2, 14))


def feed(made: SetSearch, scores: Sequence[float]) -> list[bool]:
    return [made.judge(made.propose(), score) for score in scores if made.active]


def test_too_many_in_a_row_without_a_gain_end_it():
    made = search()
    assert feed(made, [0.2, 0.1, 0.2, 0.1, 0.0, 0.5]) == [True, False, False, False, False]
    assert not made.active
    assert made.tolerance == 4  # one more than the limit, as published


def test_a_gain_starts_the_count_anew():
    made = search()
    feed(made, [0.2, 0.1, 0.1, 0.1, 0.3, 0.1, 0.1, 0.1])
    assert made.active
    assert made.tolerance == 3


def test_too_many_in_all_end_it():
    made = search(max_tolerance=100)
    assert len(feed(made, [0.1] * 50)) == 10  # one more than the limit, as published


def test_a_high_score_ends_it_and_counts():
    made = search()
    assert feed(made, [0.9, 0.95, 0.97]) == [True, True]
    assert (made.best, made.active) == (0.95, False)


class Noting:
    """A suggester that always says the same and notes what it learns."""

    def __init__(self) -> None:
        self.point = np.linspace(0.0, 1.0, 12)
        self.learnt: list[tuple[list[float], float]] = []

    def suggest(self) -> np.ndarray:
        return self.point

    def register(self, point: np.ndarray, score: float) -> None:
        self.learnt.append((point.tolist(), score))


def test_a_suggestion_is_learnt_as_it_was_and_skips_its_largest_places():
    noting = Noting()
    made = search(suggester=noting, bayes_interval=2)
    first, second = made.propose(), None
    made.judge(first, 0.1)
    second = made.propose()
    made.judge(second, 0.2)
    assert (first.bayesian, second.bayesian) == (False, True)
    assert second.sublayers == {5, 7, 9, 11, 13}  # the MLPs of layers 2 to 6 stand last
    assert set(noting.learnt[0][0]) == {0.0, 1.0}
    assert noting.learnt[1] == (noting.point.tolist(), 0.2)


def process(**changes: Any) -> GaussianProcess:
    return GaussianProcess(
        **(
            {"dimensions": 3, "kappa": 0.5, "noise": 1e-4, "seed": 1, "fit_restarts": 0, "samples": 300, "restarts": 0}
            | changes
        )
    )


def taught(made: GaussianProcess) -> GaussianProcess:
    """One that has seen a hill at (0.8, 0.2, 0.5)."""
    for point in np.random.RandomState(0).uniform(size=(60, 3)):
        made.register(point, float(-((point - [0.8, 0.2, 0.5]) ** 2).sum()))
    return made


@pytest.mark.parametrize("restarts", [0, 2])
def test_a_taught_process_suggests_the_top_of_the_hill(restarts):
    point = taught(process(restarts=restarts)).suggest()
    assert point == pytest.approx([0.8, 0.2, 0.5], abs=0.15)
    assert point.min() >= 0.0
    assert point.max() <= 1.0


def test_following_the_gradient_finds_a_higher_bound():
    plain, climbing = taught(process(samples=20)), taught(process(samples=20, restarts=3))
    bound = plain._upper_bound(plain._fitted())
    assert bound(climbing.suggest()[None])[0] >= bound(plain.suggest()[None])[0]


def test_a_process_that_knows_nothing_suggests_by_its_seed():
    assert process().suggest().tolist() == process().suggest().tolist()
    assert process().suggest().tolist() != process(seed=2).suggest().tolist()


def test_much_weight_on_doubt_looks_elsewhere():
    eager, careful = taught(process(kappa=50.0)).suggest(), taught(process(kappa=0.0)).suggest()
    top = np.array([0.8, 0.2, 0.5])
    assert np.linalg.norm(eager - top) > np.linalg.norm(careful - top)


@pytest.mark.parametrize(
    "change", ["opt_interval=0", "gp_alpha=0.0", "context_window=256", "kappa=-1", "bayes_interval=0"]
)
def test_what_is_not_legal_is_said(change):
    with pytest.raises(ConfigError, match=change.split("=")[0]):
        composed("model=tiny", "method=swift", f"method.{change}")
