"""Lookahead decoding: AR's tokens, a window that never counts, phrases found where text repeats."""

from __future__ import annotations

import pytest
import torch

from specbench.decoding.protocol import Request
from specbench.decoding.sampling import GeneratorDraws
from specbench.decoding.target import Target
from specbench.hardware.timer import PhaseTimer
from specbench.methods.lookahead import Lookahead
from specbench.methods.lookahead_draft import LookaheadDraft
from specbench.methods.lookahead_engine import LookaheadEngine
from specbench.types import ConfigError, Generation, Sampling
from tests.composed import composed
from tests.decoding.tinies import PROMPT, ar_tokens, check_every_step, decode, tiny_target

ZEROS = (256, *(0,) * 12)  # with the variant whose answers are full of zeros
COUNT = 40


def engine(level: int = 4, window: int = 5, guess_set: int = 4) -> LookaheadEngine:
    return LookaheadEngine.of(level=level, window=window, guess_set=guess_set, seed=10)


def run(drafter: Lookahead, **sampling: float) -> Generation:
    """An answer that repeats itself."""
    generator = check_every_step(decode(drafter, decoder=tiny_target("zero"), **sampling))
    found: Generation = generator.generate(ZEROS, max_new_tokens=COUNT, seed=0)
    return found


def phrases(found: Generation) -> int:
    """How many rows of phrases were verified."""
    return sum(step.num_tree_tokens for step in found.steps or ())


@pytest.mark.parametrize(
    ("sizes", "bonus"),
    [
        ((3, 1, 1), True),
        ((3, 6, 2), False),
        ((4, 5, 4), True),
        ((4, 5, 4), False),
        ((7, 2, 9), True),
        ((5, 7, 7), False),
    ],
)
@pytest.mark.parametrize(("variant", "prompt"), [("plain", PROMPT), ("plain", (7,)), ("zero", ZEROS)])
def test_greedy_answers_are_ars(
    sizes: tuple[int, int, int], bonus: bool, variant: str, prompt: tuple[int, ...]
) -> None:
    generator = decode(Lookahead(engine(*sizes), bonus), decoder=tiny_target(variant))
    found = generator.generate(prompt, max_new_tokens=COUNT, seed=0)
    assert found.tokens == ar_tokens(COUNT, prompt, variant)


def test_the_window_rides_along_and_fills_first() -> None:
    level, window = 5, 4
    found = run(Lookahead(engine(level, window)))
    assert found.steps is not None
    assert [step.num_tree_tokens for step in found.steps[: level - 2]] == [0] * (level - 2)
    assert [step.num_emitted for step in found.steps[: level - 2]] == [1] * (level - 2)
    assert [step.num_passengers for step in found.steps[:4]] == [6, 5 + 6, 4 + 2 * 5, 3 + 3 * 4]
    assert all(step.num_draft_tokens is None for step in found.steps[:-1])


def test_phrases_save_steps_where_text_repeats() -> None:
    found = run(Lookahead(engine()))
    assert found.steps is not None
    assert len(found.steps) < 0.8 * COUNT
    assert max(step.num_accepted for step in found.steps) == 3


@pytest.mark.parametrize(("bonus", "most"), [(True, 4), (False, 3)])
def test_the_token_after_a_whole_phrase_is_an_option(bonus: bool, most: int) -> None:
    found = run(Lookahead(engine(), bonus))
    assert found.steps is not None
    assert max(step.num_emitted for step in found.steps) == most


def test_passengers_on_the_target_find_what_a_model_on_its_own_cache_finds() -> None:
    """One engine, two owners: the target with a window of passengers, and a draft model that runs the rows itself."""
    ours = Lookahead(engine(), take_perfect_bonus=False)
    answer = run(ours).tokens
    model = LookaheadDraft(tiny_target("zero"), engine(), max_rows=64, take_perfect_bonus=False)
    with torch.inference_mode():
        request = Request(
            target=Target(tiny_target("zero")),
            committed=list(ZEROS),
            sampling=Sampling(),
            draws=GeneratorDraws(0),
            stop_ids=(),
            max_new_tokens=COUNT,
            timer=PhaseTimer(),
        )
        model.begin(request)
        while len(request.committed) < len(ZEROS) + COUNT - 1:
            left = COUNT + len(ZEROS) - len(request.committed)
            request.committed.extend(model.burst(request.committed[model.cache.length :], room=left).tokens)
    assert tuple(request.committed[len(ZEROS) :]) == answer[: len(request.committed) - len(ZEROS)]
    assert model.engine.pool.contents() == ours.engine.pool.contents()


def test_phrases_last_until_the_reset() -> None:
    drafter = Lookahead(engine())
    cold = run(drafter)
    assert len(drafter.engine.pool) > 0
    warm = run(drafter)
    drafter.reset()
    again = run(drafter)
    assert warm.tokens == cold.tokens == again.tokens
    assert [step.num_tree_tokens for step in again.steps or ()] == [step.num_tree_tokens for step in cold.steps or ()]
    assert phrases(warm) > phrases(cold)


def test_sampling_drafts_are_greedy_phrases_and_verified_as_such() -> None:
    found = run(Lookahead(engine()), temperature=0.3)
    assert found.steps is not None
    assert len(found.tokens) == COUNT
    assert sum(step.num_accepted for step in found.steps) > 0


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("level=2", "method.level=2: must be 3 or more"),
        ("window=0", "method.window=0: must be 1 or more"),
        ("guess_set=0", "method.guess_set=0: must be 1 or more"),
        ("window=60", "(level - 1) * (window + guess_set) - 1 = 267 rows a pass; at most 256 are legal"),
    ],
)
def test_bad_sizes_are_one_clear_error(override: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        composed("model=tiny", "method=lookahead", f"method.{override}")
    assert words in str(error.value)


def test_a_controller_is_refused() -> None:
    with pytest.raises(ConfigError, match="method=lookahead takes no controller"):
        composed("model=tiny", "method=lookahead", "method/controller=fixed")
