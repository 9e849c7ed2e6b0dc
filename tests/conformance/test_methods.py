"""What every method owes: AR's tokens, an exact budget, one stop rule, an exact cache, honest counts."""

from __future__ import annotations

import pytest

from specbench.models.tiny import VARIANTS
from specbench.types import ConfigError, Generation, Sampling, StepRecord
from tests.conformance.matrix import (
    AR,
    END,
    GREEDY,
    PROMPTS,
    TOKENS,
    Case,
    always,
    cases,
    decode,
    every_answer,
    every_case,
    every_own_case,
    every_sampled_case,
    every_sampled_own_case,
    every_variant,
    generator,
    greedy,
    reference,
)
from tests.decoding.tinies import check_every_step

TEXT = PROMPTS["text"]
SAMPLING = Sampling(temperature=0.8, top_k=50, top_p=0.95)


def test_every_method_of_the_configuration_is_here() -> None:
    found = {str(case) for case in cases()}
    assert {"ar", "pld", "sps-fixed", "sps-heuristic", "sps-confidence", "hf_ar", "hf_assisted", "hf_pld"} <= found


@every_answer
def test_greedy_answers_are_ars(case: Case, prompt: tuple[int, ...], variant: str) -> None:
    assert greedy(case, variant, prompt).tokens == reference(variant, prompt)


def assert_counts(found: Generation, context: int) -> None:
    """Steps tell one consistent story of how the tokens came."""
    assert found.steps is not None
    assert sum(step.num_emitted for step in found.steps) == len(found.tokens)
    for number, step in enumerate(found.steps):
        assert step.step == number
        assert step.context_length == context
        assert 1 <= step.num_emitted <= step.num_accepted + 1
        assert 0 <= step.num_accepted_spine <= step.num_accepted <= step.num_tree_tokens
        assert len(step.draft_tokens) == step.num_tree_tokens + step.num_passengers
        if step.num_draft_tokens is None:
            assert step.num_accepted_spine == 0
        else:
            assert step.num_accepted_spine <= step.num_draft_tokens <= step.num_tree_tokens
        assert min(step.draft_s, step.verify_s, step.adapt_s, step.host_s) >= 0
        context += step.num_emitted


@every_variant
@every_own_case
def test_counts_are_consistent(case: Case, variant: str) -> None:
    for prompt in PROMPTS.values():
        assert_counts(greedy(case, variant, prompt), len(prompt))


@every_case
def test_outside_references_show_no_steps_and_all_show_times(case: Case) -> None:
    found = greedy(case, "plain", TEXT)
    assert (found.steps is None) == case.outside
    assert found.prefill_s > 0
    assert found.decode_s > 0
    assert found.ttft_s > 0


@every_case
@pytest.mark.parametrize("budget", [1, 2, 7])
def test_budget_is_exact(case: Case, budget: int) -> None:
    found = decode(generator(case), TEXT, max_new_tokens=budget, reference_ids=reference("plain", TEXT))
    assert found.tokens == reference("plain", TEXT)[:budget]
    assert found.finish_reason == "length"


@every_case
@pytest.mark.parametrize("place", [0, 1, 6, 20])
def test_first_stop_id_is_kept_and_nothing_after_it(case: Case, place: int) -> None:
    answer = reference("plain", TEXT)
    found = decode(generator(case), TEXT, stop_ids={answer[place], 300}, reference_ids=answer)
    assert found.tokens == answer[: answer.index(answer[place]) + 1]
    assert found.finish_reason == "stop"


@every_case
def test_answers_that_end_early_end_alike(case: Case) -> None:
    prompt = PROMPTS["one repeated token"]
    answer = reference("eos", prompt)
    assert END in answer
    found = decode(generator(case, "eos"), prompt, stop_ids=[END], reference_ids=answer)
    assert found.tokens == answer[: answer.index(END) + 1]


def check_cache(case: Case, sampling: Sampling) -> None:
    build = generator.__wrapped__  # an instance of its own: it gets a check at every step
    built = check_every_step(build(case, "plain", sampling))
    assert_counts(decode(built, TEXT, reference_ids=reference("plain", TEXT)), len(TEXT))


@every_own_case
def test_cache_holds_exactly_what_was_committed(case: Case) -> None:
    check_cache(case, GREEDY)


@every_sampled_own_case
def test_cache_holds_exactly_what_was_committed_when_sampling(case: Case) -> None:
    check_cache(case, SAMPLING)


@pytest.mark.parametrize("case", [case for case in cases() if case.bound and always(case)], ids=str)
def test_bounds_refuse_to_sample_and_to_guess(case: Case) -> None:
    with pytest.raises(ConfigError, match=r"sampling\.temperature=0\.8.*greedy"):
        decode(generator(case, "plain", SAMPLING), TEXT, reference_ids=reference("plain", TEXT))
    with pytest.raises(ConfigError, match="AR's answer"):
        decode(generator(case), TEXT)


@every_sampled_case
def test_a_seed_is_an_answer(case: Case) -> None:
    built = generator(case, "plain", SAMPLING)
    first, again, other = (decode(built, TEXT, seed=seed, max_new_tokens=16) for seed in (1, 1, 2))
    assert first.tokens == again.tokens
    assert first.tokens != other.tokens
    assert len(first.tokens) == 16


@every_own_case
def test_prompts_leave_no_trace_after_a_reset(case: Case) -> None:
    built = generator(case)
    for prompt in (PROMPTS["zeros"], tuple(range(256)) * 3, TEXT):
        answer = reference("plain", prompt, 8)
        assert decode(built, prompt, max_new_tokens=8, reference_ids=answer).tokens == answer


@every_own_case
def test_methods_that_carry_state_stay_right_without_a_reset(case: Case) -> None:
    built = generator(case, "zero")
    for prompt in (*PROMPTS.values(), TEXT):
        answer = reference("zero", prompt)
        found = built.generate(prompt, max_new_tokens=TOKENS, seed=0, reference_ids=answer)
        assert found.tokens == answer


# ---- the runs above are worth something only where everything happened


def steps(case: Case) -> list[StepRecord]:
    """All steps of the method's greedy runs; none for the outside references."""
    runs = [greedy(case, variant, prompt) for variant in VARIANTS for prompt in PROMPTS.values()]
    return [step for found in runs for step in found.steps or ()]


def test_full_partial_and_zero_acceptance_all_occurred() -> None:
    seen = set()
    for step in steps(Case("sps", "fixed")):
        if step.num_tree_tokens:
            whole = step.num_accepted == step.num_tree_tokens
            seen.add("full" if whole else "partial" if step.num_accepted else "zero")
    assert seen == {"full", "partial", "zero"}


@every_own_case
def test_every_method_but_ar_drafts_and_is_right_at_times(case: Case) -> None:
    drafted = sum(step.num_tree_tokens for step in steps(case))
    if case == AR:
        assert drafted == 0
        assert {step.num_emitted for step in steps(case)} == {1}
    else:
        assert drafted > 0
        assert sum(step.num_accepted for step in steps(case)) > 0


@every_own_case
def test_trees_have_accepted_siblings(case: Case) -> None:
    bushy = [step for step in steps(case) if step.num_draft_tokens != step.num_tree_tokens]
    assert not bushy or any(step.num_accepted > step.num_accepted_spine for step in bushy)
