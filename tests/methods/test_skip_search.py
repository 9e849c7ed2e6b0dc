"""What ConfLayers and SWIFT share: the tree that verification can afford, stored sets, passes that leave no trace."""

from __future__ import annotations

import functools
import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from scripts.golden.enumeration import BranchDraws, continued, distribution
from specbench.controllers.fixed import FixedLength
from specbench.decoding.target import Target
from specbench.decoding.verification import verify
from specbench.hardware.profile import VerifyCurve, seconds
from specbench.methods.build import Parts, build_generator
from specbench.methods.chain import Branching, ChainDrafter
from specbench.methods.skip_search import affordable_siblings, branching, interior, look, shipped_set
from specbench.types import ConfigError, ModelError, Sampling, Verdict, VerifyResult
from tests.composed import composed
from tests.decoding.exact import Language
from tests.decoding.tinies import PROMPT, ar_tokens, assert_cache_holds, fresh_cache, tiny_target

FLAT = VerifyCurve({1: 1.0, 128: 1.05})
STEEP = VerifyCurve({1: 1.0, 128: 128.0})
BENT = VerifyCurve({1: 1.0, 8: 1.0, 128: 121.0})  # eight rows for the price of one


def parts(curve: VerifyCurve | None = None, **fields: Any) -> Parts:
    read = None if curve is None else lambda: curve
    return Parts(target=Target(tiny_target()), sampling=fields.pop("sampling", Sampling()), curve=read, **fields)


def tree(**changes: Any) -> Any:
    words = [f"method.tree.{key}={value}" for key, value in changes.items()]
    return composed("model=tiny", "method=confl", *words).method.tree


def test_auto_adds_what_verification_gives_away():
    rooms = affordable_siblings(BENT, 0.1)
    assert rooms[:6] == (6, 5, 4, 3, 2, 1)  # eight rows with the root
    for spine, room in enumerate(rooms, start=1):
        limit = 1.1 * seconds(BENT, spine + 1)
        assert seconds(BENT, spine + 1 + room) <= limit < seconds(BENT, spine + 2 + room)


def test_auto_is_a_chain_where_every_row_costs():
    steep = branching(tree(), parts(STEEP))
    assert steep is not None
    assert [steep.room(spine) for spine in (1, 8, 9, 19)] == [0, 0, 1, 2]  # a tenth of a long spine
    assert branching(tree(max_overhead=0.01), parts(STEEP)) is None
    flat = branching(tree(), parts(FLAT))
    assert flat is not None
    assert flat.room(5) == 126
    assert branching(tree(max_nodes=1), parts(FLAT)) is None


def test_sampling_has_its_own_widths():
    greedy = branching(tree(max_nodes=131), parts())
    drawn = branching(tree(max_nodes=131), parts(sampling=Sampling(temperature=1.0)))
    assert greedy is not None
    assert drawn is not None
    probs = (0.96, 0.95, 0.8, 0.5)
    assert [greedy.width(prob) for prob in probs] == [3, 5, 8, 10]
    assert [drawn.width(prob) for prob in probs] == [1, 3, 5, 10]


@pytest.mark.parametrize("bad", ["max_nodes=wide", "max_nodes=0", "max_overhead=-1", "widths_greedy=[3,5]"])
def test_trees_that_cannot_be_are_refused(bad):
    with pytest.raises(ConfigError, match=r"method\.tree"):
        composed("model=tiny", "method=swift", f"method.tree.{bad}")


# ---- trees when sampling


def drafted(language: Language, widths: tuple[int, ...], depth: int, draws: BranchDraws) -> Any:
    """A spine with siblings drawn from the language's draft q0."""
    path: list[int] = []

    def forward(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        path.append(int(ids[0, -1]))
        return language.logits("q0", tuple(path[1:])), torch.zeros(1)

    decoder = SimpleNamespace(device="cpu")
    request: Any = SimpleNamespace(
        sampling=language.sampling, stop_ids=(), draws=draws, target=SimpleNamespace(decoder=decoder)
    )
    chain = ChainDrafter(FixedLength(depth), language.vocab, request, Branching((0.5,), widths))
    return chain.draft(forward, [0], budget=depth)


def decided(language: Language, widths: tuple[int, ...], depth: int, draws: BranchDraws) -> Verdict:
    draft = drafted(language, widths, depth, draws)
    tokens, parents = draft.tokens.tolist(), draft.parents or tuple(range(-1, len(draft) - 1))

    def path(row: int) -> tuple[int, ...]:
        return () if row < 0 else (*path(parents[row]), tokens[row])

    logits = torch.stack([language.logits("p", path(row)) for row in range(-1, len(tokens))])
    return verify(draft, VerifyResult(logits=logits), sampling=language.sampling, draws=draws)


@pytest.mark.parametrize(
    ("sampling", "widths"), [(Sampling(1.0), (2, 3)), (Sampling(0.5), (2, 3)), (Sampling(1.0, top_p=0.8), (4, 4))]
)
def test_trees_keep_the_targets_distribution(sampling, widths):
    """The first tokens, also after an accepted sibling, where top-p leaves fewer tokens than siblings are wanted."""
    language, depth = Language(4, seed=3, sampling=sampling), 2
    siblings = 0.0
    outputs: dict[tuple[int, ...], float] = {}
    verdicts = distribution(
        lambda draws: (lambda v: (v.tokens, v.num_accepted > v.num_accepted_spine))(
            decided(language, widths, depth, draws)
        )
    )
    for (tokens, by_sibling), probability in verdicts.items():
        outputs[tokens] = outputs.get(tokens, 0.0) + probability
        siblings += probability * by_sibling
    assert siblings > 0.02
    found = continued(outputs, depth + 1, lambda prefix: language.probs("p", prefix).tolist())
    expected = language.joint(depth + 1)
    assert sum(abs(found.get(key, 0.0) - value) for key, value in expected.items()) < 1e-9


# ---- passes of a search


def test_a_look_sees_only_its_prefix_and_leaves_committed_rows_alone():
    decoder, tokens = tiny_target(), [*PROMPT, *ar_tokens(20)]
    cache = decoder.new_cache(200)
    with torch.inference_mode():
        decoder.forward(torch.tensor([tokens]), cache, start=0, logits="none")
        cache.length = len(tokens)
        window = tokens[12:20]
        seen = look(decoder, cache, window, 12, logits="all")
        alone = decoder.forward(torch.tensor([tokens[:20]]))
    assert seen.logits is not None
    assert alone.logits is not None
    torch.testing.assert_close(seen.logits[0], alone.logits[0, 12:], atol=1e-4, rtol=1e-4)
    assert_cache_holds(cache, decoder, tokens)


def test_models_without_a_middle_are_refused():
    two = SimpleNamespace(spec=SimpleNamespace(num_layers=2))
    with pytest.raises(ModelError, match="3 layers or more, not 2"):
        interior(two)  # type: ignore[arg-type]
    assert interior(tiny_target()) == 4
    assert fresh_cache(tiny_target(), PROMPT).length == len(PROMPT)


# ---- stored sets


@functools.cache
def config(method: str, *changes: str) -> Any:
    return composed("model=tiny", f"method={method}", *changes).method


@pytest.mark.parametrize("method", ["confl", "swift"])
def test_a_given_set_is_used_and_never_searched(method):
    generator: Any = build_generator(
        config(method, "method.skip_set=[2,3,9]", "method.context_window=2", "method.tree.max_nodes=20"), parts()
    )
    found = generator.generate(PROMPT, max_new_tokens=24, seed=0)
    assert found.tokens == ar_tokens(24)
    assert generator.drafter.skip == {2, 3, 9}
    assert [(c.values["reason"], c.values["sublayers"]) for c in found.choices] == [("given", [2, 3, 9])]
    assert not generator.drafter.searches
    assert any(step.num_draft_tokens for step in found.steps)


@pytest.mark.parametrize("method", ["confl", "swift"])
def test_what_a_search_starts_with(method, tmp_path):
    uniform = {2, 3, 6, 7}
    for choice, expected in (("auto", uniform), ("uniform", uniform), ("none", None)):
        generator: Any = build_generator(config(method, f"method.initial_set={choice}"), parts())
        assert generator.drafter.skip == expected
    for name, stored in (
        ("a", {"model": "other", "sublayers": [4]}),
        ("b", {"model": "mine", "sublayers": [4, 7], "method": "else", "task": "t"}),
        ("c", {"model": "mine", "sublayers": [5], "method": method, "task": "s"}),
        ("d", {"model": "mine", "sublayers": [6], "method": method, "task": "t"}),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps(stored))
    for task, expected in (("t", {6}), ("s", {5}), ("u", {5})):  # by method, then by task
        assert shipped_set(method, parts(model_hash="mine", task=task), tmp_path) == expected
    assert shipped_set("others", parts(model_hash="mine", task="t"), tmp_path) == {4, 7}
    assert shipped_set(method, parts(model_hash="another"), tmp_path) is None
    assert shipped_set(method, parts(), tmp_path) is None


@pytest.mark.parametrize("method", ["confl", "swift"])
def test_without_an_initial_set_steps_are_plain_until_the_search_has_one(method):
    changes = ["method.initial_set=none", "method.context_window=4", "method.tree.max_nodes=1"]
    generator: Any = build_generator(config(method, *changes), parts())
    found = generator.generate(PROMPT, max_new_tokens=24, seed=0)
    assert found.choices[0].values["sublayers"] is None
    first = found.choices[1].step
    assert all(step.num_draft_tokens == 0 for step in found.steps[: first + 1])
    assert any(step.num_draft_tokens for step in found.steps[first + 1 :])
    assert found.tokens == ar_tokens(24)
