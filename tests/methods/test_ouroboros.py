"""Ouroboros: the draft's own tokens in fewer passes, phrases behind them, blocks for any controller."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from specbench.controllers.base import ControllerBase
from specbench.controllers.confidence import ConfidenceStop
from specbench.controllers.fixed import FixedLength
from specbench.controllers.heuristic import Heuristic
from specbench.decoding.loop import SpeculativeDecoding
from specbench.decoding.protocol import Block
from specbench.decoding.target import Target
from specbench.methods.ar import Autoregressive
from specbench.methods.build import Parts, build_generator
from specbench.methods.lookahead_draft import LookaheadDraft
from specbench.methods.lookahead_engine import LookaheadEngine
from specbench.methods.ouroboros import Options, Ouroboros
from specbench.models.decoder import Decoder
from specbench.types import ConfigError, Generation, Sampling
from tests.composed import composed
from tests.decoding.tinies import (
    PROMPT,
    ar_tokens,
    assert_cache_holds,
    decode,
    resized_draft,
    tiny_draft,
    tiny_target,
)
from tests.methods.test_sps import exact_joint, p_value, small

LOOP = (256, *b"abcabcabcabc")
COUNT = 48
CONTROLLERS: dict[str, Callable[[], Any]] = {
    "fixed": lambda: FixedLength(5),
    "heuristic": Heuristic,
    "confidence": lambda: ConfidenceStop(10, threshold=0.3),
}


@dataclass
class Watcher(ControllerBase):
    """Asks for blocks of `block_size` tokens until `passes` of them passed, and notes what it is shown."""

    num_draft_tokens: int = 12
    block_size: int = 3
    passes: int = 100
    signals: frozenset[str] = field(init=False, default=frozenset({"prob", "hidden"}))
    blocks: list[tuple[int, Block]] = field(default_factory=list)  # (committed tokens, block)

    def begin(self, request: Any) -> None:
        self.request = request

    def note(self, block: Block) -> None:
        self.blocks.append((len(self.request.committed), block))

    def more(self, block: Block) -> bool:
        self.note(block)
        return block.first < self.passes * self.block_size

    def ended(self, block: Block) -> None:
        self.note(block)


def ouroboros(
    controller: Any, draft: Decoder | None = None, *, level: int = 4, bonus: bool = True, **options: Any
) -> Ouroboros:
    engine = LookaheadEngine.of(level=level, window=5, guess_set=4, seed=10)
    model = LookaheadDraft(draft or tiny_draft(), engine, max_rows=64, take_perfect_bonus=bonus)
    return Ouroboros(model, controller, Options(**options))


def watched(drafter: Ouroboros) -> Ouroboros:
    """A drafter whose own cache is compared with a fresh prefill after every verdict."""
    observe = drafter.observe

    def checked(verdict: Any, result: Any) -> None:
        observe(verdict, result)
        accepted, length = drafter._before + verdict.num_accepted_spine, drafter.cache.length
        assert length in (accepted, accepted - 1) or not drafter._spine.tokens
        assert_cache_holds(drafter.cache, drafter.model.decoder, drafter.request.committed[:length])

    drafter.observe = checked  # type: ignore[method-assign]
    return drafter


def run(drafter: Ouroboros, prompt: tuple[int, ...] = LOOP, variant: str = "plain", **sampling: float) -> Generation:
    generator = decode(drafter, decoder=tiny_target(variant), **sampling)
    found: Generation = generator.generate(prompt, max_new_tokens=COUNT, seed=0)
    return found


def drafts(found: Generation, prompt: tuple[int, ...] = LOOP) -> list[tuple[list[int], tuple[int, ...]]]:
    """(committed tokens, spine) of every step that drafted."""
    text = [*prompt, *found.tokens]
    steps = [step for step in found.steps or () if step.num_draft_tokens]
    return [(text[: step.context_length], step.draft_tokens[: step.num_draft_tokens]) for step in steps]


def mixes() -> list[Any]:
    """Every controller, bonus and variant; those in which each value occurs run always, the others when slow."""
    quick = [("fixed", True, "library"), ("heuristic", False, "spec_bench"), ("confidence", False, "library")]
    every = itertools.product(CONTROLLERS, (True, False), ("library", "spec_bench"))
    return [pytest.param(*mix, marks=() if mix in quick else pytest.mark.slow) for mix in every]


@pytest.mark.parametrize(("controller", "bonus", "variant"), mixes())
def test_both_caches_hold_what_was_committed(controller: str, bonus: bool, variant: str) -> None:
    found = run(watched(ouroboros(CONTROLLERS[controller](), bonus=bonus, variant=variant)))
    assert found.tokens == ar_tokens(COUNT, LOOP)
    assert any(step.num_accepted_spine < (step.num_draft_tokens or 0) for step in found.steps or ())
    zeros = (256, *(0,) * 12)
    drafter = ouroboros(CONTROLLERS[controller](), tiny_draft("zero"), bonus=bonus, variant=variant)
    found = run(watched(drafter), zeros, "zero")
    assert found.tokens == ar_tokens(COUNT, zeros, "zero")
    assert any(step.num_accepted > step.num_accepted_spine for step in found.steps or ())  # a phrase was right


@pytest.mark.parametrize("prompt", [LOOP, PROMPT])
@pytest.mark.parametrize("truncate", [True, False])
def test_drafts_are_the_drafts_own_tokens_in_fewer_passes(prompt: tuple[int, ...], truncate: bool) -> None:
    found = run(ouroboros(FixedLength(6), truncate_overshoot=truncate), prompt)
    for committed, spine in drafts(found, prompt):
        alone = decode(Autoregressive(), decoder=tiny_draft())
        assert spine == alone.generate(committed, max_new_tokens=len(spine), seed=0).tokens
    steps = [step for step in found.steps or () if step.num_draft_tokens]
    assert sum(step.info["draft_forwards"] for step in steps) < sum(step.num_draft_tokens or 0 for step in steps)


def test_truncation_keeps_the_controllers_length() -> None:
    lengths = {
        truncate: [len(spine) for _, spine in drafts(run(ouroboros(FixedLength(4), truncate_overshoot=truncate)))]
        for truncate in (True, False)
    }
    assert max(lengths[True]) == 4
    assert max(lengths[False]) > 4


# ---- blocks


@pytest.mark.parametrize("options", [{}, {"block_overshoot": "carry"}, {"block_unit": "draft_forwards"}], ids=str)
def test_blocks_tell_of_every_token_once(options: dict[str, str]) -> None:
    watcher = Watcher()
    found = run(ouroboros(watcher, **options))
    shown: dict[int, list[int]] = {}
    for committed, block in watcher.blocks:
        assert block.first == len(shown.setdefault(committed, []))
        shown[committed] += block.tokens
    assert shown == {len(committed): list(spine) for committed, spine in drafts(found)}
    lengths = [len(block.tokens) for _, block in watcher.blocks]
    if options.get("block_overshoot") == "carry":  # but for what lies behind the cap
        assert max(len(block.tokens) for _, block in watcher.blocks if block.first + 3 < watcher.num_draft_tokens) == 3
    else:
        assert max(lengths) > 3
    assert [step.block_lengths for step in found.steps or () if step.num_draft_tokens] == [
        tuple(len(block.tokens) for at, block in watcher.blocks if at == committed) for committed in shown
    ]


def test_a_block_brings_the_rows_that_predicted_it() -> None:
    """Also where a phrase was hit: the rows of the winning phrase, not consecutive ones."""
    watcher, draft = Watcher(), tiny_draft()
    found = run(ouroboros(watcher))
    text, compared = [*LOOP, *found.tokens], 0
    for committed, block in watcher.blocks:
        spine = [t for at, b in watcher.blocks if at == committed for t in b.tokens]
        with torch.inference_mode():
            out = draft.forward(torch.tensor([text[:committed] + spine]))
        first = committed - 1 + block.first
        rows = slice(first, first + len(block.tokens))
        assert block.hidden is not None
        assert block.prob is not None
        assert out.normed is not None
        assert out.logits is not None
        torch.testing.assert_close(block.hidden, out.normed[0, rows], atol=1e-4, rtol=1e-4)
        prob = out.logits[0, rows].softmax(-1).gather(1, torch.tensor(block.tokens)[:, None])[:, 0]
        torch.testing.assert_close(block.prob, prob, atol=1e-4, rtol=1e-4)
        compared += len(block.tokens) > 1
    assert compared > 3


def test_a_rule_that_never_stops_is_a_fixed_length_and_one_that_always_does_is_one_block() -> None:
    def spines(controller: Any) -> list[tuple[int, ...]]:
        return [spine for _, spine in drafts(run(ouroboros(controller)))]

    assert spines(Watcher(passes=100)) == spines(FixedLength(12))
    one = Watcher(passes=0)
    found = run(ouroboros(one))
    assert {block.first for _, block in one.blocks} == {0}
    assert {step.stop_reason for step in found.steps or ()} <= {"rule", "budget"}
    assert found.tokens == ar_tokens(COUNT, LOOP)


def test_a_failed_block_can_be_left_out() -> None:
    found = run(watched(ouroboros(Watcher(passes=1), on_fail="drop_block", block_overshoot="carry")))
    assert found.tokens == ar_tokens(COUNT, LOOP)
    assert {len(spine) for _, spine in drafts(found)[:-4]} == {3}
    nothing = run(watched(ouroboros(Watcher(passes=0), on_fail="drop_block")))
    assert nothing.tokens == ar_tokens(COUNT, LOOP)
    assert all(step.num_draft_tokens == 0 for step in (nothing.steps or ())[:-4])


def test_suffixes_can_depend_on_how_drafting_ended() -> None:
    found = run(ouroboros(Watcher(passes=0), suffix_policy="only_if_passed"))
    assert all(
        step.num_tree_tokens == step.num_draft_tokens for step in found.steps or () if step.stop_reason == "rule"
    )
    assert run(ouroboros(FixedLength(5), suffix_k=0)).tokens == ar_tokens(COUNT, LOOP)


def test_leaving_out_tokens_is_refused_when_sampling() -> None:
    config = composed("model=tiny", "method=ouroboros", "method.on_fail=drop_block").method
    parts = Parts(target=Target(tiny_target()), sampling=Sampling(temperature=1.0), draft=tiny_draft())
    with pytest.raises(ConfigError, match=r"method\.on_fail=drop_block: only legal with sampling\.temperature=0"):
        build_generator(config, parts)


# ---- phrases, vocabularies, sampling


def test_phrases_last_as_long_as_the_scope() -> None:
    drafter = ouroboros(FixedLength(6))
    cold = run(drafter)
    warm = run(drafter)
    drafter.reset()
    again = run(drafter)
    assert warm.tokens == cold.tokens == again.tokens
    assert drafts(again) == drafts(cold)
    tried = [sum(step.info.get("num_suffixes", 0) for step in found.steps or ()) for found in (warm, cold)]
    assert tried[0] > tried[1]


def test_the_global_generator_is_left_alone() -> None:
    state, numbers = random.getstate(), torch.get_rng_state()
    run(ouroboros(FixedLength(6)), temperature=1.0)
    assert random.getstate() == state
    assert torch.equal(torch.get_rng_state(), numbers)


@pytest.mark.parametrize("vocab", [200, 261, 300])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0}], ids=["greedy", "sampling"])
def test_draft_vocabularies_of_other_sizes(vocab: int, sampling: dict[str, float]) -> None:
    found = run(ouroboros(FixedLength(4), resized_draft(vocab)), PROMPT, **sampling)
    assert all(max(spine) < min(vocab, 261) for _, spine in drafts(found, PROMPT))
    assert sum(step.num_accepted for step in found.steps or ()) > 0
    if not sampling:
        assert found.tokens == ar_tokens(COUNT)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0}, {"temperature": 0.6, "top_p": 0.9}], ids=str)
def test_a_draft_equal_to_the_target_is_always_accepted(sampling: dict[str, float]) -> None:
    """When sampling the spine is the draft's own draws, which phrases only foretell."""
    found = run(ouroboros(FixedLength(4), tiny_target()), **sampling)
    assert all(step.num_accepted_spine == step.num_draft_tokens for step in found.steps or ())


@pytest.mark.slow
def test_sampled_tokens_follow_the_target() -> None:
    """What accepts and draws is enumerated exactly elsewhere; this is the whole method on many seeds."""
    target, draft, prompt, sampling = small(2), small(11), [1, 2], Sampling(temperature=0.9, top_k=4)
    drafter = ouroboros(FixedLength(2), draft, level=3)
    generator = SpeculativeDecoding(Target(target), drafter, sampling)
    counts: Counter[tuple[int, ...]] = Counter()
    beyond = 0
    for seed in range(500):  # the pool stays: phrases are there from the first step on
        found = generator.generate(prompt, max_new_tokens=4, seed=seed)
        counts[found.tokens[:2]] += 1
        beyond += sum(step.num_accepted - step.num_accepted_spine for step in found.steps or ())
    assert beyond > 0
    assert p_value(counts, exact_joint(target, prompt, 2, sampling)) > 1e-2
    assert p_value(counts, exact_joint(draft, prompt, 2, sampling)) < 1e-6  # the test can tell the models apart


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("variant=paper", "method.variant=paper: not a legal value."),
        ("suffix.k=-1", "method.suffix.k=-1: must be 0 or more"),
        ("suffix.policy=never", "Legal: always, only_if_passed"),
        ("block_overshoot=cut", "Legal: extend, carry"),
        ("block_unit=phrases", "Legal: tokens, draft_forwards"),
        ("on_fail=retry", "Legal: submit_all, drop_block"),
        ("suffix.k=65", "k * (level - 1) rows after the draft; at most 256 are legal"),
    ],
)
def test_bad_values_are_one_clear_error(override: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        composed("model=tiny", "method=ouroboros", f"method.{override}")
    assert words in str(error.value)
