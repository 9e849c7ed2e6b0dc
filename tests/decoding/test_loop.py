"""The loop commits exactly what the target would have said, stops once, and counts what it did."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from specbench.decoding.loop import empty_draft
from specbench.methods.ar import Autoregressive
from specbench.types import ConfigError, Draft, Needs, Resume, SampleError
from tests.decoding.tinies import (
    PROMPT,
    Scripted,
    ar_tokens,
    chain,
    check_every_step,
    decode,
    knows,
    tiny_target,
)

COUNT = 28


@pytest.fixture(scope="module")
def answer() -> tuple[int, ...]:
    return ar_tokens(COUNT)


def run(generator: Any, **changes: Any) -> Any:
    return generator.generate(**({"prompt": PROMPT, "max_new_tokens": COUNT, "seed": 0} | changes))


# ---- AR


def test_ar_makes_one_step_a_token(answer: tuple[int, ...]) -> None:
    found = run(decode(Autoregressive()))
    assert found.tokens == answer
    assert len(found.steps) == COUNT
    assert {step.num_emitted for step in found.steps} == {1}
    assert {step.num_draft_tokens for step in found.steps} == {0}
    assert [step.context_length for step in found.steps] == [len(PROMPT) + i for i in range(COUNT)]
    assert found.finish_reason == "length"


def test_ar_is_the_argmax_of_a_full_recompute(answer: tuple[int, ...]) -> None:
    logits = tiny_target().forward(torch.tensor([[*PROMPT, *answer]])).logits
    assert logits is not None
    assert tuple(logits[0, len(PROMPT) - 1 : -1].argmax(-1).tolist()) == answer


def test_seconds_add_up() -> None:
    found = run(decode(Autoregressive()), max_new_tokens=5)
    assert found.decode_s == pytest.approx(sum(s.draft_s + s.verify_s + s.adapt_s + s.host_s for s in found.steps))
    assert found.prefill_s > 0
    assert found.prefill_s < found.ttft_s < found.prefill_s + found.decode_s


# ---- chains


def sometimes_wrong(answer: tuple[int, ...], first: int = 0) -> Any:
    """Chains of which all, none or some leading tokens are right, in turn; every fifth is empty."""
    turns, following = itertools.cycle(range(first, first + 5)), knows(answer)

    def script(committed: list[int], budget: int) -> Draft:
        length, right = [(4, 4), (3, 0), (5, 2), (1, 1), (0, 0)][next(turns) % 5]
        tokens = following(committed, min(budget, length))
        return chain([*tokens[:right], *((token + 1) % 256 for token in tokens[right:])])

    return script


def test_chains_give_ars_tokens_and_an_exact_cache(answer: tuple[int, ...]) -> None:
    found = run(check_every_step(decode(Scripted(sometimes_wrong(answer)))))
    assert found.tokens == answer
    accepted = [(step.num_accepted, step.num_draft_tokens) for step in found.steps if step.num_draft_tokens]
    assert any(a == d for a, d in accepted)
    assert any(a == 0 for a, _ in accepted)
    assert any(0 < a < d for a, d in accepted)
    for step in found.steps:
        assert step.num_emitted == step.num_accepted + 1
        assert len(step.draft_tokens) == step.num_draft_tokens == step.num_tree_tokens


def test_counts_are_consistent(answer: tuple[int, ...]) -> None:
    found = run(decode(Scripted(sometimes_wrong(answer, 1))))
    assert sum(step.num_emitted for step in found.steps) == len(found.tokens) == COUNT
    assert [step.step for step in found.steps] == list(range(len(found.steps)))
    context = len(PROMPT)
    for step in found.steps:
        assert step.context_length == context
        context += step.num_emitted


def test_budget_leaves_room_for_the_bonus(answer: tuple[int, ...]) -> None:
    drafter = Scripted(lambda committed, budget: chain(knows(answer)(committed, min(budget, 6))))
    found = run(decode(drafter), max_new_tokens=17)
    assert found.tokens == answer[:17]
    assert drafter.budgets == [16, 9, 2]
    assert [step.num_emitted for step in found.steps] == [7, 7, 3]


@pytest.mark.parametrize("budget", [1, 2, 5, 8, 9])
def test_a_burst_beyond_the_budget_is_cut(answer: tuple[int, ...], budget: int) -> None:
    drafter = Scripted(lambda committed, _: chain(knows(answer)(committed, 8)))
    found = run(check_every_step(decode(drafter)), max_new_tokens=budget)
    assert found.tokens == answer[:budget]
    assert found.finish_reason == "length"
    assert len(found.steps) == 1
    assert found.steps[0].num_emitted == budget
    assert found.steps[0].num_accepted == min(8, budget)


def test_no_bonus_where_the_draft_says_so(answer: tuple[int, ...]) -> None:
    drafter = Scripted(lambda committed, budget: chain(knows(answer)(committed, min(4, budget)), leaf_bonus=False))
    found = run(check_every_step(decode(drafter)))
    assert found.tokens == answer
    assert found.steps[0].num_emitted == found.steps[0].num_accepted == 4


# ---- trees


def bushy(answer: tuple[int, ...], first: int = 0) -> Any:
    """A spine that goes wrong somewhere, with siblings (one of them right), phrases below, and passengers."""
    turns, following = itertools.cycle(range(first, first + 6)), knows(answer)

    def script(committed: list[int], budget: int) -> Draft:
        right = following(committed, min(budget, 5))
        if not right:
            return empty_draft()
        turn = [5, 0, 2, 1, 5, 3][next(turns) % 6]
        tokens = [*right[:turn], *((token + 1) % 256 for token in right[turn:])]
        parents = list(range(-1, len(right) - 1))
        for place in range(len(right)):  # a wrong sibling, then the right one with a child
            tokens += [(right[place] + 2) % 256, right[place]]
            parents += [place - 1, place - 1]
            if place + 1 < len(right):
                tokens.append(right[place + 1])
                parents.append(len(tokens) - 2)
        for passenger in range(3):
            tokens.append(right[0])
            parents.append(-1 if passenger == 0 else len(tokens) - 2)
        return Draft(torch.tensor(tokens), tuple(parents), spine=len(right), passengers=3)

    return script


@pytest.mark.parametrize("first", range(3))
def test_trees_give_ars_tokens_and_an_exact_cache(answer: tuple[int, ...], first: int) -> None:
    found = run(check_every_step(decode(Scripted(bushy(answer, first)))))
    assert found.tokens == answer
    assert any(step.num_accepted > step.num_accepted_spine for step in found.steps)  # a sibling
    assert any(step.num_accepted_spine == step.num_draft_tokens for step in found.steps if step.num_draft_tokens)
    assert {step.num_passengers for step in found.steps if step.draft_tokens} == {3}
    for step in found.steps:
        assert step.num_tree_tokens + step.num_passengers == len(step.draft_tokens)


def test_trees_sample_reproducibly(answer: tuple[int, ...]) -> None:
    generator = decode(Scripted(bushy(answer)), temperature=0.7)
    generator = check_every_step(generator)
    first = run(generator, seed=3)
    generator.drafter.script = bushy(answer)
    assert run(generator, seed=3).tokens == first.tokens
    assert len(first.tokens) == COUNT


def test_a_draft_too_large_for_the_cache_fails_the_sample(answer: tuple[int, ...]) -> None:
    generator = decode(Scripted(lambda committed, budget: Draft(torch.ones(600, dtype=torch.int64), (-1,) * 600)))
    with pytest.raises(SampleError, match="600 rows"):
        run(generator)


def test_rows_handed_over_by_a_self_drafter_are_not_computed_again(answer: tuple[int, ...]) -> None:
    """The drafter runs the target's first layers over root and draft in the target's cache, then says so."""
    following = knows(answer)

    def script(committed: list[int], budget: int) -> Draft:
        tokens = following(committed, min(budget, 4))
        if not tokens:
            return empty_draft()
        target = drafter.request.target
        ids = torch.tensor([[committed[-1], *tokens[:-1]]])
        out = target.decoder.forward(ids, target.cache, start=target.cache.length, layers=(0, 3), logits="none")
        return chain(tokens, resume=Resume(3, out.hidden[0]))

    drafter = Scripted(script)
    found = run(check_every_step(decode(drafter)))
    assert found.tokens == answer
    assert found.steps[0].num_accepted == 4


# ---- stopping


@pytest.mark.parametrize("drafted", [0, 1, 3, 9])
@pytest.mark.parametrize("place", [0, 1, 4, 12])
def test_first_stop_id_is_kept_and_ends_the_answer(answer: tuple[int, ...], place: int, drafted: int) -> None:
    """With 9 drafted tokens the stop id lies inside an accepted draft, with others it is the bonus at times."""
    stop = answer[place]
    first = answer.index(stop)
    drafter = Scripted(lambda committed, budget: chain(knows(answer)(committed, min(drafted, budget))))
    found = run(decode(drafter), stop_ids=[stop, 300])
    assert found.tokens == answer[: first + 1]
    assert found.finish_reason == "stop"
    assert sum(step.num_emitted for step in found.steps) == first + 1
    assert drafter.seen[-1][0].stopped
    assert not any(verdict.stopped for verdict, _ in drafter.seen[:-1])


def test_a_stop_id_in_the_prompt_does_not_stop(answer: tuple[int, ...]) -> None:
    assert PROMPT[3] not in answer[:5]
    assert run(decode(Autoregressive()), max_new_tokens=5, stop_ids=[PROMPT[3]]).tokens == answer[:5]


def test_a_rejected_stop_id_does_not_stop(answer: tuple[int, ...]) -> None:
    stop = 300 - 45
    assert stop not in answer
    drafter = Scripted(lambda committed, budget: chain([stop] * min(3, budget)))
    assert run(decode(drafter), stop_ids=[stop]).tokens == answer


def test_stop_on_the_last_token_of_the_budget_is_a_stop(answer: tuple[int, ...]) -> None:
    first = answer.index(answer[4])
    assert run(decode(Autoregressive()), max_new_tokens=first + 1, stop_ids=[answer[4]]).finish_reason == "stop"


# ---- edges


def test_a_prompt_of_one_token() -> None:
    expected = ar_tokens(10, prompt=(65,))
    found = run(
        check_every_step(decode(Scripted(lambda c, b: chain(knows(expected, (65,))(c, min(b, 3)))))), prompt=[65]
    )
    assert found.tokens[:10] == expected
    assert found.steps[0].context_length == 1


def test_one_token_is_one_step(answer: tuple[int, ...]) -> None:
    drafter = Scripted(sometimes_wrong(answer))
    found = run(decode(drafter), max_new_tokens=1)
    assert (found.tokens, len(found.steps), drafter.budgets) == (answer[:1], 1, [0])


@pytest.mark.parametrize("count", [0, -3])
def test_no_tokens_asked_for_is_an_error(count: int) -> None:
    with pytest.raises(ConfigError, match=r"max_new_tokens.*at least 1"):
        run(decode(Autoregressive()), max_new_tokens=count)


def test_an_empty_prompt_fails_the_sample() -> None:
    with pytest.raises(SampleError, match="prompt"):
        run(decode(Autoregressive()), prompt=[])


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0}])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_broken_logits_fail_the_sample_and_not_the_next(sampling: dict[str, float], value: float) -> None:
    generator = decode(Autoregressive(), **sampling)
    head = generator.target.decoder.head.weight
    kept = head[7].clone()
    head[7] = value
    try:
        with pytest.raises(SampleError, match="NaN"):
            run(generator, max_new_tokens=3)
    finally:
        head[7] = kept
    assert len(run(generator, max_new_tokens=3).tokens) == 3


def test_samples_follow_each_other_without_a_trace(answer: tuple[int, ...]) -> None:
    generator = check_every_step(decode(Scripted(lambda committed, budget: empty_draft())))
    run(generator, prompt=list(range(50)), max_new_tokens=5)
    assert run(generator).tokens == answer
    long = list(range(200)) * 3  # a longer prompt than the cache was made for
    assert run(generator, prompt=long, max_new_tokens=4).tokens == ar_tokens(4, prompt=long)


# ---- sampling


def test_seeds_decide_the_sample() -> None:
    generator = decode(Autoregressive(), temperature=1.0)
    first, again, other = (run(generator, seed=seed).tokens for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_sampled_tokens_do_not_depend_on_what_came_before() -> None:
    generator = decode(Autoregressive(), temperature=1.0)
    alone = run(generator, seed=4).tokens
    run(generator, seed=9)
    assert run(generator, seed=4).tokens == alone


# ---- what drafters are shown


def test_needs_are_served_for_every_row(answer: tuple[int, ...]) -> None:
    needs = Needs(argmax=True, logits=True, last_hidden=True, residuals=(-1, 3), sublayer_outputs=(2,))
    drafter = Scripted(bushy(answer), needs)
    run(decode(drafter), max_new_tokens=12)
    for _, result in drafter.seen:
        rows = result.argmax.shape[0]
        assert result.logits.shape == (rows, 261)
        assert torch.equal(result.logits.argmax(-1), result.argmax)
        assert result.last_hidden.shape == result.residuals[3].shape == result.sublayer_outputs[2].shape == (rows, 64)
        head = tiny_target().head(result.last_hidden[None])[0]
        torch.testing.assert_close(head, result.logits, rtol=1e-4, atol=1e-4)


def test_nothing_is_shown_that_was_not_asked_for(answer: tuple[int, ...]) -> None:
    drafter = Scripted(sometimes_wrong(answer))
    run(decode(drafter), max_new_tokens=4)
    for _, result in drafter.seen:
        assert result.logits is None
        assert result.last_hidden is None
        assert not result.residuals
        assert result.prompt is None


@pytest.mark.parametrize(("rows", "served"), [(3, 3), (100, len(PROMPT) - 1)])
def test_prompt_rows_come_once_with_the_first_step(rows: int, served: int) -> None:
    wanted = Needs(argmax=True, last_hidden=True, residuals=(1,), prompt_rows=rows)
    drafter = Scripted(lambda committed, budget: empty_draft(), wanted)
    run(check_every_step(decode(drafter)), max_new_tokens=4)
    prompt = drafter.seen[0][1].prompt
    assert all(result.prompt is None for _, result in drafter.seen[1:])
    logits = tiny_target().forward(torch.tensor([PROMPT[:-1]])).logits[0, -served:]
    assert torch.equal(prompt.argmax, logits.argmax(-1))
    assert prompt.last_hidden.shape == prompt.residuals[1].shape == (served, 64)


def test_the_request_carries_what_the_caller_gave() -> None:
    drafter = Scripted(lambda committed, budget: empty_draft())
    run(decode(drafter, temperature=0.5), max_new_tokens=2, stop_ids=[1, 2], reference_ids=[7, 8])
    request = drafter.request
    assert request.reference_ids == [7, 8]
    assert set(request.stop_ids) == {1, 2}
    assert request.max_new_tokens == 2
    assert request.sampling.temperature == 0.5
    assert len(request.committed) == len(PROMPT) + 2
