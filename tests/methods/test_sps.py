"""Speculative sampling: the target's own distribution, whatever the draft, and a draft cache that never drifts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from scipy.stats import chisquare

from specbench.controllers.confidence import ConfidenceStop
from specbench.controllers.fixed import FixedLength
from specbench.controllers.heuristic import Heuristic
from specbench.decoding.loop import SpeculativeDecoding
from specbench.decoding.sampling import probabilities
from specbench.decoding.target import Target
from specbench.methods.sps import SpeculativeSampling
from specbench.models.decoder import Decoder
from specbench.models.spec import ModelSpec
from specbench.types import Sampling
from tests.decoding.tinies import (
    PROMPT,
    ar_tokens,
    assert_cache_holds,
    check_every_step,
    decode,
    resized_draft,
    tiny_draft,
    tiny_target,
)

CONTROLLERS = {
    "fixed": lambda: FixedLength(4),
    "long": lambda: FixedLength(12),
    "heuristic": Heuristic,
    "confidence": lambda: ConfidenceStop(10, threshold=0.3),
}
COUNT = 30


def watched(draft: Decoder, controller: Any) -> SpeculativeSampling:
    """A drafter whose own cache is compared with a fresh prefill after every verdict."""
    drafter = SpeculativeSampling(draft, controller)
    observe = drafter.observe

    def checked(verdict: Any, result: Any) -> None:
        observe(verdict, result)
        committed, length = drafter.request.committed, drafter.cache.length
        drafted_all = verdict.num_accepted == drafter._drafted
        stopped = len(committed) == len(PROMPT) + drafter.request.max_new_tokens
        assert stopped or length == len(committed) - 1 - (drafted_all and drafter._drafted > 0)
        assert_cache_holds(drafter.cache, draft, committed[:length])

    drafter.observe = checked  # type: ignore[method-assign]
    return drafter


def run(drafter: Any, **changes: Any) -> Any:
    sampling = {key: changes.pop(key) for key in ("temperature", "top_k", "top_p") if key in changes}
    generator = check_every_step(decode(drafter, **sampling))
    return generator.generate(**({"prompt": PROMPT, "max_new_tokens": COUNT, "seed": 0} | changes))


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "top_k": 20}], ids=["greedy", "sampling"])
@pytest.mark.parametrize("controller", CONTROLLERS.values(), ids=CONTROLLERS)
def test_both_caches_hold_what_was_committed(controller: Any, sampling: dict[str, float]) -> None:
    found = run(watched(tiny_draft(), controller()), **sampling)
    accepted = [(step.num_accepted, step.num_draft_tokens) for step in found.steps if step.num_draft_tokens]
    assert any(a == d for a, d in accepted)
    assert any(a < d for a, d in accepted)
    if not sampling:
        assert found.tokens == ar_tokens(COUNT)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0}, {"temperature": 0.6, "top_p": 0.9}])
def test_a_draft_equal_to_the_target_is_always_accepted(sampling: dict[str, float]) -> None:
    found = run(SpeculativeSampling(tiny_target(), FixedLength(4)), **sampling)
    assert all(step.num_accepted == step.num_draft_tokens for step in found.steps)
    assert [step.num_emitted for step in found.steps] == [5] * 6


@pytest.mark.parametrize("vocab", [200, 261, 300])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0}], ids=["greedy", "sampling"])
def test_draft_vocabularies_of_other_sizes(vocab: int, sampling: dict[str, float]) -> None:
    """Ids that only the draft has are never drafted, those that it lacks come from the target."""
    found = run(SpeculativeSampling(resized_draft(vocab), FixedLength(4)), **sampling)
    drafted = [token for step in found.steps for token in step.draft_tokens]
    assert max(drafted) < min(vocab, 261)
    assert max(PROMPT) >= 200  # the smallest draft cannot even read this prompt
    assert sum(step.num_accepted for step in found.steps) > 0
    if not sampling:
        assert found.tokens == ar_tokens(COUNT)


def test_drafts_stop_at_a_stop_id() -> None:
    answer = ar_tokens(COUNT)
    found = run(SpeculativeSampling(tiny_target(), FixedLength(8)), stop_ids=[answer[10]])
    assert found.tokens == answer[: answer.index(answer[10]) + 1]
    assert found.steps[-1].draft_tokens[-1] == answer[10]
    assert found.steps[-1].stop_reason == "stop_id"


@pytest.mark.parametrize("length", [1, 3, 7])
def test_fixed_lengths_are_what_was_asked_for(length: int) -> None:
    found = run(SpeculativeSampling(tiny_draft(), FixedLength(length)))
    left = [COUNT - (step.context_length - len(PROMPT)) for step in found.steps]
    assert [step.num_draft_tokens for step in found.steps] == [min(length, rest - 1) for rest in left]


def test_a_confident_draft_is_longer_when_asked_for_less_confidence() -> None:
    lengths = [
        [
            step.num_draft_tokens
            for step in run(SpeculativeSampling(tiny_draft(), ConfidenceStop(10, threshold=t))).steps
        ]
        for t in (0.05, 0.9)
    ]
    assert sum(lengths[0]) / len(lengths[0]) > sum(lengths[1]) / len(lengths[1])
    assert min(lengths[1][:-1]) >= 1


def test_stop_rules_submit_every_drafted_token_when_sampling() -> None:
    """Dropping the doubted token would bias what comes out: each drafted token has been verified."""
    drafter, fed = SpeculativeSampling(tiny_draft(), ConfidenceStop(10, threshold=0.5)), []
    propose = drafter.propose

    def counted(budget: int) -> Any:
        before = drafter.cache.length
        draft = propose(budget)
        new = len(drafter.request.committed) - before
        fed.append((drafter.cache.length - before - new + 1 if len(draft) else 0, len(draft)))
        return draft

    drafter.propose = counted  # type: ignore[method-assign]
    run(drafter, temperature=1.0)
    assert all(forwards == submitted for forwards, submitted in fed)
    assert len({submitted for _, submitted in fed}) > 1


# ---- the distribution, with real models and real draws

SMALL = ModelSpec(
    family="llama",
    num_layers=1,
    hidden_size=8,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    intermediate_size=12,
    vocab_size=5,
    max_positions=64,
)


def small(seed: int, layers: int = 1) -> Decoder:
    generator = torch.Generator().manual_seed(seed)
    decoder = Decoder(replace(SMALL, num_layers=layers), dtype=torch.float32)
    for slot in decoder.slots().values():
        slot.copy_(torch.randn(slot.shape, generator=generator) * 0.6 + (1.0 if slot.dim() == 1 else 0.0))
    return decoder.finish("library")


def exact_joint(decoder: Decoder, prompt: list[int], length: int, sampling: Sampling) -> dict[tuple[int, ...], float]:
    sequences = list(product(range(decoder.spec.vocab_size), repeat=length))
    logits = decoder.forward(torch.tensor([prompt + list(sequence) for sequence in sequences])).logits
    assert logits is not None
    p = probabilities(logits[:, len(prompt) - 1 : -1].double(), sampling)
    chances = p.gather(2, torch.tensor(sequences)[:, :, None])[..., 0].prod(1)
    return dict(zip(sequences, chances.tolist(), strict=True))


def p_value(counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """Chi-square over outcomes; those expected fewer than five times are pooled."""
    total = counts.total()
    rare = {key for key, chance in expected.items() if chance * total < 5}
    cells = [(counts[key], chance * total) for key, chance in expected.items() if key not in rare]
    if rare:
        cells.append((sum(counts[key] for key in rare), sum(expected[key] for key in rare) * total))
    observed, wanted = zip(*cells, strict=True)
    return float(chisquare(observed, wanted).pvalue)


def test_sampled_tokens_follow_the_target() -> None:
    target, draft, prompt, sampling = small(2), small(11), [1, 2], Sampling(temperature=0.9, top_k=4)
    generator = SpeculativeDecoding(Target(target), SpeculativeSampling(draft, FixedLength(2)), sampling)
    counts: Counter[tuple[int, ...]] = Counter()
    accepted = drafted = 0
    for seed in range(500):
        found = generator.generate(prompt, max_new_tokens=3, seed=seed)
        counts[found.tokens[:2]] += 1
        accepted += found.steps[0].num_accepted
        drafted += found.steps[0].num_draft_tokens
    assert 0.2 < accepted / drafted < 0.9  # rejection and acceptance both took part
    assert p_value(counts, exact_joint(target, prompt, 2, sampling)) > 1e-2
    assert p_value(counts, exact_joint(draft, prompt, 2, sampling)) < 1e-6  # the test can tell the models apart
