"""Whatever is drafted, the tokens that come out follow the target's own distribution."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.golden.enumeration import branches, distribution
from specbench.decoding.sampling import GeneratorDraws
from specbench.decoding.verification import residual, verify
from specbench.types import ConfigError, Draft, Sampling, VerifyResult
from tests.decoding.exact import POINT, Language, Shape, emitted_joint, verified

CHAIN = Shape(((-1, 0), (0, 0), (1, 0)))
SIBLINGS = Shape(((-1, 0), (-1, 0), (-1, 0)))
TREE = Shape(((-1, 0), (-1, 0), (0, 0), (0, 0), (1, 0)))
SHAPES = {
    "empty": Shape(()),
    "chain": CHAIN,
    "point-mass chain": Shape(((-1, POINT), (0, POINT), (1, POINT))),
    "siblings without replacement": SIBLINGS,
    "tree": TREE,
    "point mass after drawn": Shape(((-1, 0), (-1, POINT), (1, 0))),
    "point mass before drawn": Shape(((-1, POINT), (-1, 0), (0, POINT), (1, 0))),
    "two sources in turn": Shape(((-1, 0), (-1, 1), (-1, 0), (-1, POINT))),
    "equal point masses": Shape(((-1, 2), (-1, POINT), (-1, POINT), (1, 0))),
    "no bonus": Shape(((-1, 0), (-1, POINT), (0, 0)), leaf_bonus=False),
    "passengers": Shape(((-1, 0), (0, 0), (-1, POINT), (2, POINT)), passengers=2),
    "passengers without bonus": Shape(((-1, 0), (0, POINT), (1, POINT)), passengers=1, leaf_bonus=False),
}
SAMPLINGS = {
    "plain": Sampling(temperature=1.0),
    "warm": Sampling(temperature=1.7),
    "top_k": Sampling(temperature=1.0, top_k=2),
    "top_p": Sampling(temperature=0.8, top_p=0.75),
}


def assert_lossless(language: Language, shape: Shape, rule: str) -> None:
    found, length = emitted_joint(language, shape, rule)
    expected = language.joint(length)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)
    for sequence, probability in expected.items():
        assert found.get(sequence, 0.0) == pytest.approx(probability, abs=1e-12)


@pytest.mark.parametrize("rule", ["rejection", "sample_match"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_shape_keeps_the_targets_distribution(shape: Shape, rule: str) -> None:
    assert_lossless(Language(vocab=3), shape, rule)


@pytest.mark.parametrize("rule", ["rejection", "sample_match"])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_cut_and_warped_distributions_are_kept(sampling: Sampling, rule: str) -> None:
    for shape in (CHAIN, Shape(((-1, 0), (-1, 0), (0, POINT)))):
        assert_lossless(Language(vocab=4, seed=1, sampling=sampling), shape, rule)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    count = draw(st.integers(1, 4))
    rows = tuple((draw(st.integers(-1, row - 1)), draw(st.sampled_from([POINT, 0, 1]))) for row in range(count))
    return Shape(rows, passengers=draw(st.integers(0, count)), leaf_bonus=draw(st.booleans()))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(shapes(), st.integers(0, 5), st.sampled_from(["rejection", "sample_match"]))
def test_any_small_tree_keeps_the_targets_distribution(shape: Shape, seed: int, rule: str) -> None:
    assert_lossless(Language(vocab=3, seed=seed), shape, rule)


def test_the_enumeration_would_notice_a_wrong_rule() -> None:
    """A token chosen for certain but said to be drawn from q must not pass."""
    language = Language(vocab=3)
    q = language.probs("q0", ())
    token = int(q.argmax())
    draft = Draft(tokens=torch.tensor([token]), q=q[None], q_row=(0,))
    result = VerifyResult(logits=torch.stack([language.logits("p", ()), language.logits("p", (token,))]))
    found = distribution(lambda draws: verify(draft, result, sampling=language.sampling, draws=draws).tokens[0])
    honest = language.probs("p", ()).tolist()
    assert max(abs(probability - honest[token]) for token, probability in found.items()) > 1e-2


@pytest.mark.parametrize("rule", ["rejection", "sample_match"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_verdicts_describe_a_path_of_the_draft(shape: Shape, rule: str) -> None:
    real = len(shape.rows) - shape.passengers
    for probability, verdict in branches(lambda draws: verified(Language(vocab=3), shape, rule, draws)):
        assert probability > 0
        parents = [-1, *verdict.rows]
        assert all(shape.rows[row][0] == parent for row, parent in zip(verdict.rows, parents, strict=False))
        assert all(row < real for row in verdict.rows)
        assert verdict.num_accepted == len(verdict.rows)
        at_leaf = not any(parent == parents[-1] for parent, _ in shape.rows[:real])
        bonus = not (at_leaf and verdict.rows and not shape.leaf_bonus)
        assert len(verdict.tokens) == len(verdict.rows) + bonus
        assert verdict.next_token == verdict.tokens[-1]


def test_equal_draft_and_target_accept_everything() -> None:
    p = Language(vocab=4).probs("p", ())
    draft = Draft(tokens=torch.tensor([2, 0]), q=torch.stack([p, p]), q_row=(0, 1), spine=2)
    result = VerifyResult(logits=p.log().expand(3, -1))
    for _, verdict in branches(lambda draws: verify(draft, result, sampling=Sampling(1.0), draws=draws)):
        assert verdict.num_accepted == verdict.num_accepted_spine == 2


def test_residual_of_equal_distributions_falls_back_to_the_target() -> None:
    p = torch.tensor([0.25, 0.75])
    assert torch.equal(residual(p, p, 0), p)
    certain = torch.tensor([0.0, 1.0])
    assert torch.equal(residual(certain, None, 1), certain)
    torch.testing.assert_close(residual(p, torch.tensor([1.0, 0.0]), 0), certain)


# ---- greedy


@st.composite
def greedy_cases(draw: st.DrawFn) -> tuple[Draft, list[int]]:
    count = draw(st.integers(0, 8))
    parents = tuple(draw(st.integers(-1, row - 1)) for row in range(count))
    tokens = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    argmax = draw(st.lists(st.integers(0, 2), min_size=count + 1, max_size=count + 1))
    draft = Draft(
        tokens=torch.tensor(tokens, dtype=torch.int64),
        parents=parents,
        spine=draw(st.integers(0, count)),
        passengers=draw(st.integers(0, count)),
        leaf_bonus=draw(st.booleans()),
    )
    return draft, argmax


@given(greedy_cases())
@settings(deadline=None, derandomize=True)
def test_greedy_follows_the_first_child_that_equals_the_argmax(case: tuple[Draft, list[int]]) -> None:
    draft, argmax = case
    tokens, parents = draft.tokens.tolist(), draft.parents or ()
    rows: list[int] = []
    while True:
        here = rows[-1] if rows else -1
        children = [row for row in range(len(tokens) - draft.passengers) if parents[row] == here]
        matching = [row for row in children if tokens[row] == argmax[here + 1]]
        if not matching:
            break
        rows.append(matching[0])
    answer = [tokens[row] for row in rows]
    if not (rows and not children and not draft.leaf_bonus):
        answer.append(argmax[here + 1])
    result = VerifyResult(argmax=torch.tensor(argmax))
    verdict = verify(draft, result, sampling=Sampling(), draws=GeneratorDraws(0))
    assert list(verdict.rows) == rows
    assert list(verdict.tokens) == answer
    assert verdict.num_accepted_spine == sum(row < (draft.spine or 0) for row in rows)


def test_a_chain_needs_no_parents() -> None:
    draft = Draft(tokens=torch.tensor([5, 6, 7]), spine=3)
    verdict = verify(
        draft, VerifyResult(argmax=torch.tensor([5, 6, 8, 9])), sampling=Sampling(), draws=GeneratorDraws(0)
    )
    assert (verdict.rows, verdict.tokens, verdict.num_accepted_spine) == ((0, 1), (5, 6, 8), 2)


def test_unknown_rule_names_the_legal_ones() -> None:
    with pytest.raises(ConfigError, match=r"method\.verification='typical'.*rejection, sample_match"):
        verify(
            Draft(tokens=torch.tensor([1])),
            VerifyResult(argmax=torch.tensor([1, 2])),
            sampling=Sampling(),
            draws=GeneratorDraws(0),
            rule="typical",
        )
