"""ConfLayers on the tiny target: lossless whatever it skips, confidences of the right rows, state of the right age."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from specbench.decoding.target import Target
from specbench.methods.build import Parts, build_generator
from specbench.methods.confidence_selection import confidences, entropies
from specbench.methods.confl import Context
from specbench.models.decoder import Taps
from specbench.types import ConfigError, Sampling
from tests.composed import composed
from tests.decoding.tinies import PROMPT, ar_tokens, check_every_step, tiny_target

SMALL = ("method.context_window=6", "method.search_interval=2")
COUNT = 48
LAYERS = range(1, 5)  # of six


@functools.cache
def config(*changes: str) -> Any:
    return composed("model=tiny", *changes).method


def built(*changes: str, method: str = "confl", sampling: Sampling | None = None, variant: str = "plain") -> Any:
    parts = Parts(target=Target(tiny_target(variant)), sampling=sampling or Sampling())
    return build_generator(config(f"method={method}", *SMALL, *changes), parts)


def generate(generator: Any, count: int = COUNT, prompt: Sequence[int] = PROMPT) -> Any:
    return generator.generate(prompt, max_new_tokens=count, seed=0)


def searched(found: Any) -> list[Any]:
    """The choices that the search made, without what a prompt starts with."""
    return [choice for choice in found.choices if choice.values["reason"] not in ("initial", "carried_over")]


@pytest.mark.parametrize("variant", ["plain", "zero"])
@pytest.mark.parametrize("nodes", [1, 131])
@pytest.mark.parametrize("method", ["confl", pytest.param("confl_official", marks=pytest.mark.slow)])
def test_greedy_answers_are_ars_while_the_search_runs(method, nodes, variant):
    generator = check_every_step(built(f"method.tree.max_nodes={nodes}", method=method, variant=variant))
    found = generate(generator)
    assert found.tokens == ar_tokens(COUNT, variant=variant)
    assert sum(choice.values["reason"] == "chosen" for choice in found.choices) >= 2
    bushy = any(step.num_tree_tokens > step.num_draft_tokens for step in found.steps)
    assert bushy == (nodes > 1)


@pytest.mark.parametrize("changes", [
    ["method.confidence_source=lm_head"],
    ["method.select_dtype=float16", "method.lambda_mode=fixed", "method.lambda_init=0.4"],
    ["method.window_mode=10", "method.context_anchor=prompt"],
    ["method/controller=fixed"],
    ["method/controller=heuristic", "method.skip_ratio=0.9"],
], ids=" ".join)  # fmt: skip
def test_every_option_is_lossless(changes):
    generator = check_every_step(built(*changes))
    found = generate(generator)
    assert found.tokens == ar_tokens(COUNT)
    assert len(found.choices) >= 2


def test_the_first_step_is_plain_and_sets_hold_whole_inner_layers():
    found = generate(built())
    assert found.steps[0].num_draft_tokens == 0
    for choice in searched(found):
        layers = choice.values["sublayers"][::2]
        assert choice.values["sublayers"] == [half for layer in layers for half in (layer, layer + 1)]
        assert {layer // 2 for layer in layers} <= set(LAYERS)
        assert choice.values["search_s"] > 0


def test_nothing_is_chosen_before_there_is_enough_text():
    found = generate(built("method.context_window=20"))
    first = searched(found)[0]
    assert first.context_length - 1 - len(PROMPT) > 21
    assert searched(generate(built("method.context_window=47"))) == []


def test_a_score_that_is_high_enough_ends_the_search_and_keeps_the_set():
    changes = (
        "method.max_score=0.0",
        "method.min_acc_for_stop=0.0",
        "method.skip_ratio=0.1",
        "method.early_abort=never",
    )
    generator = built(*changes)
    last = generate(generator).choices[-1].values
    assert last["reason"] == "score"
    assert not last["active"]
    assert last["measured_accepted"] > 0
    assert generate(generator).choices[0].values["reason"] == "carried_over"
    assert sorted(generator.drafter.skip) == last["sublayers"]


def test_the_cap_ends_the_search():
    generator = built("method.max_opt_iter=3", "method.skip_ratio=0.9")
    chosen = [choice.values for choice in searched(generate(generator))]
    assert [values["active"] for values in chosen] == [True, True, False]
    assert chosen[-1]["sublayers"] == [2, 3, 6, 7]  # never judged, as too small: the uniform set


def test_state_lives_until_a_reset():
    generator = built("method.skip_ratio=0.9")
    generate(generator)
    opt_iter, lam = generator.drafter.search.opt_iter, generator.drafter.search.lam
    assert opt_iter > 1
    assert lam < 0.0
    second = generate(generator).choices
    assert second[1].values["opt_iter"] == opt_iter
    assert second[1].values["lambda"] == lam
    generator.reset()
    assert searched(generate(generator))[0].values["opt_iter"] == 0


def test_lambda_moves_for_the_next_choice():
    chosen = [choice.values for choice in searched(generate(built("method.skip_ratio=0.9")))]
    assert len(chosen) > 2
    for before, after in itertools.pairwise(chosen):
        assert after["lambda"] == before["lambda_next"] == pytest.approx(before["lambda"] - 0.05)


# ---- confidences


def after_decoding(count: int, *changes: str) -> Any:
    """A drafter after a decode, with the loop's last root outside the window."""
    generator = built(*changes)
    generate(generator, count)
    return generator.drafter


def fresh(tokens: Sequence[int], last: int, source: str) -> Any:
    """Confidences over the last rows of a pass without a cache."""
    decoder = tiny_target()
    taps = Taps(residuals=range(12), sublayer_outputs=range(12))
    with torch.inference_mode():
        out = decoder.forward(torch.tensor([list(tokens)]), taps=taps)
        if source == "lm_head":
            states = [decoder.head(decoder.final_norm(out.residuals[2 * layer + 1])) for layer in LAYERS]
            return confidences(mean_entropy(states, last), decoder.spec.vocab_size, "float32")
        parts = [[out.sublayer_outputs[2 * layer + kind] for layer in LAYERS] for kind in (0, 1)]
        return sum(confidences(mean_entropy(states, last), decoder.spec.hidden_size, "float32") for states in parts)


def mean_entropy(states: list[torch.Tensor], last: int) -> Any:
    return torch.stack([entropies(state[0, -last:]).mean() for state in states]).numpy()


@pytest.mark.parametrize(("size", "source"), [(6, "lm_head"), (150, "module_outputs")])  # 150 takes two passes
def test_the_window_is_read_where_it_stands(size, source):
    drafter = after_decoding(170, f"method.context_window={size}", f"method.confidence_source={source}")
    with torch.inference_mode():
        ours = drafter.confidences()
    expected = fresh(drafter.request.committed[:-1], size, source)
    assert ours == pytest.approx(expected, abs=2e-5)


def test_as_published_the_window_follows_the_prompt():
    drafter = after_decoding(40, "method.context_anchor=prompt")
    with torch.inference_mode():
        ours = drafter.confidences()
    window = drafter.request.committed[-7:-1]
    assert ours == pytest.approx(fresh([*PROMPT, *window], 6, "module_outputs"), abs=2e-5)
    assert ours != pytest.approx(fresh(drafter.request.committed[:-1], 6, "module_outputs"), abs=2e-5)


def test_passes_cover_the_window_without_the_next_root():
    committed = list(range(400))
    passes = list(Context(300).passes(committed, 5))
    assert [token for tokens, _ in passes for token in tokens] == committed[99:399]
    assert all(tokens[0] == prefix for tokens, prefix in passes)  # each where it stands
    assert list(Context(3, behind_prompt=True).passes(committed, 5)) == [([396, 397, 398], 5)]


@pytest.mark.parametrize(("change", "said"), [
    ("window_mode=wide", "adaptive"),
    ("lambda_mode=learned", "fixed, adaptive"),
    ("fallback_set=none", "uniform, last, empty"),
    ("select_dtype=bfloat16", "float16, float32, float64"),
    ("skip_ratio=1.5", "from 0 to 1"),
    ("skip_set=3", "a file, a list"),
])  # fmt: skip
def test_what_is_not_legal_is_said(change, said):
    with pytest.raises(ConfigError, match=said):
        composed("model=tiny", "method=confl", f"method.{change}")


def test_a_window_behind_the_prompt_must_fit():
    with pytest.raises(ConfigError, match="context_anchor"):
        composed("model=tiny", "method=confl", "method.context_anchor=prompt", "method.context_window=300")
