"""The gate's examples by hand, and gates that find what is there to be found."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from specbench.controllers.fixed import FixedLength
from specbench.controllers.gate import FEATURES, Gate, GateShape
from specbench.controllers.pacer import stored_gate
from specbench.controllers.step_gate import StepGate
from specbench.decoding.protocol import Block
from specbench.methods.sps import SpeculativeSampling
from specbench.models.artefact import load_artefact
from specbench.training.gate import Steps, draft_chances, fit_gate
from specbench.training.heads import FitOptions
from specbench.training.labels import labels
from specbench.training.rollouts import Rollouts, collect
from specbench.types import ModelError
from tests.decoding.tinies import decode, tiny_draft

KEY = {"target": "t", "draft": "d", "drafter": "sps"}
GAMMA = 8
QUICK = FitOptions(label="survive", epochs=8, lr=3e-3, batch_tokens=256, held_out=0.25)
PROMPTS = [(256, 65 + number % 26, *range(70 + number, 76 + 3 * number)) for number in range(16)]


@pytest.fixture(scope="module")
def data() -> Rollouts:
    """Speculation of the tiny pair, sampled, so that answers differ from prompt to prompt."""
    generator = decode(SpeculativeSampling(tiny_draft(), FixedLength(2)), temperature=1.0)
    options: dict[str, Any] = {"num_draft_tokens": GAMMA, "max_new_tokens": 96, "hidden_dtype": torch.float32}
    return collect(generator, PROMPTS, **options)


@pytest.fixture(scope="module")
def fitted(data: Rollouts) -> Any:
    return fit_gate(data, KEY, tiny_draft(), GateShape(), QUICK)


def steps(data: Rollouts, feature: str = "pred_state", label: str = "survive") -> Steps:
    return Steps(data, *labels(data, label), GateShape(feature=feature))


def block_of(data: Rollouts, rows: slice) -> Block:
    """Collected tokens as a controller is shown them."""
    shown = {name: getattr(data, name)[rows] for name in ("prob", "entropy", "margin", "hidden")}
    return Block(0, data.token[rows].tolist(), **shown)


def test_rows_are_the_anchor_and_the_drafted_tokens(data: Rollouts) -> None:
    found = steps(data, label="conditional")
    (place,) = found.places([3], 999)
    batch, own = found.batch(place), data.step == 3
    assert batch.rows.token[0].tolist() == [int(data.step_root[3]), *data.token[own].tolist()]
    assert batch.rows.index.tolist() == list(range(int(own.sum()) + 1))
    torch.testing.assert_close(batch.rows.before[0, 1:], data.hidden[own])
    assert not batch.rows.before[0, 0].any()
    assert batch.label[0, 1:].tolist() == data.accepted[own].float().tolist()
    known = min(int(data.num_accepted[3]) + 1, int(own.sum()))
    assert int(batch.defined.sum()) == known
    assert not batch.defined[0, 0]


def test_states_that_have_read_come_one_row_earlier(data: Rollouts) -> None:
    found = steps(data, "both")
    (place,) = found.places([3], 999)
    rows, own = found.batch(place).rows, data.step == 3
    assert rows.after is not None
    torch.testing.assert_close(rows.after[0], data.hidden[own])
    torch.testing.assert_close(rows.before[0, 1:], data.hidden[own][:-1])
    assert rows.token.shape[1] == int(own.sum())  # the last token's own state is not known


def test_every_step_is_in_one_batch_and_nothing_is_padded(data: Rollouts) -> None:
    numbers = list(range(len(data.step_prompt)))
    seen = torch.cat([place.flatten() for place in steps(data).places(numbers, 64)])
    assert sorted(seen.tolist()) == list(range(len(data)))


@pytest.mark.parametrize("feature", FEATURES)
def test_replayed_chances_are_the_live_ones(feature: str, data: Rollouts) -> None:
    """What is tuned on is what a run will see: from a draft's first token, and from any later one."""
    torch.manual_seed(0)
    draft = tiny_draft()
    gate = Gate(draft.spec, draft.embedding, GateShape(feature=feature))
    for tensor in gate.trained():
        torch.nn.init.normal_(tensor, std=0.2)
    gate.requires_grad_(False)
    rows = torch.searchsorted(data.step, torch.arange(3)).tolist()
    for first, last in itertools.pairwise(rows):
        for begins in (first, min(first + 2, last - 1)):
            live = StepGate(gate, GAMMA)
            anchor = data.step_root[data.step[first]] if begins == first else data.token[begins - 1]
            live.restart([int(anchor)])
            rows_of_block = slice(begins, last)
            expected = live.chances(block_of(data, rows_of_block))
            assert draft_chances(gate, data, rows_of_block) == pytest.approx(expected, abs=1e-5)


@pytest.fixture(scope="module")
def looking_back() -> Rollouts:
    """The same speculation with the states of what was committed."""
    generator = decode(SpeculativeSampling(tiny_draft(), FixedLength(2)), temperature=1.0)
    options: dict[str, Any] = {"num_draft_tokens": GAMMA, "max_new_tokens": 64, "hidden_dtype": torch.float32}
    return collect(generator, PROMPTS[:12], context=True, **options)


def test_committed_tokens_are_collected_with_what_predicted_them(looking_back: Rollouts) -> None:
    data = looking_back
    for step in (0, 5, len(data.step_prompt) - 1):
        begin, count = int(data.step_offset[step]), int(data.step_context[step])
        tokens = data.context_token[begin : begin + count]
        assert tokens[: len(PROMPTS[int(data.step_prompt[step])])].tolist() == list(
            PROMPTS[int(data.step_prompt[step])]
        )
        assert int(tokens[-1]) == int(data.step_root[step])
        with torch.inference_mode():
            out = tiny_draft().forward(tokens[None])
        assert out.normed is not None
        torch.testing.assert_close(
            data.context_before[begin + 1 : begin + count], out.normed[0, :-1], atol=1e-4, rtol=1e-4
        )
        assert not data.context_before[begin].any()


@pytest.mark.parametrize(("feature", "mask"), [*((one, "causal") for one in FEATURES), ("pred_state", "block_causal")])
def test_a_gate_that_looks_back_is_trained_and_replayed_on_what_it_sees_live(
    feature: str, mask: str, looking_back: Rollouts
) -> None:
    """A prompt's steps are branches of one tree; a draft that begins later has what was drafted before behind it."""
    data, draft = looking_back, tiny_draft()
    torch.manual_seed(0)
    gate = Gate(draft.spec, draft.embedding, GateShape(feature=feature, scope="context", mask=mask, mask_block=2))
    for tensor in gate.trained():
        torch.nn.init.normal_(tensor, std=0.2)
    gate.requires_grad_(False)
    steps_of_one = (data.step_prompt == 3).nonzero()[:, 0].tolist()
    found = Steps(data, *labels(data, "survive"), gate.shape)
    (place,) = found.places(steps_of_one, 1)
    batch = found.batch(place)
    with torch.no_grad():
        trained = gate.chances(gate(batch.rows)[0, -place.shape[1] :])
    rows = torch.searchsorted(data.step, torch.tensor([*steps_of_one, steps_of_one[-1] + 1])).tolist()
    for step, (first, last) in zip(steps_of_one[:4], itertools.pairwise(rows), strict=False):
        begin = int(data.step_offset[step])
        committed = data.context_token[begin : begin + int(data.step_context[step])].tolist()
        past = data.context_before[begin + 1 : begin + len(committed)]
        for start in {first, min(first + 2, last - 1)}:
            live = StepGate(gate, GAMMA)
            live.begin(200)
            live.restart([*committed, *data.token[first:start].tolist()])
            block = block_of(data, slice(start, last))
            expected = live.chances(replace(block, past=torch.cat([past, data.hidden[first:start]])))
            assert draft_chances(gate, data, slice(start, last)) == pytest.approx(expected, abs=1e-4)
            if start == first:
                own = trained[first - rows[0] : last - rows[0] - gate.shape.lag].tolist()
                assert own == pytest.approx(expected, abs=1e-4)


def test_a_gate_that_looks_back_is_fitted(looking_back: Rollouts, data: Rollouts) -> None:
    found = fit_gate(looking_back, KEY, tiny_draft(), GateShape(scope="context"), replace(QUICK, epochs=14)).card
    assert found["scores"]["brier"] < found["scores"]["brier_of_the_mean"]
    with pytest.raises(ModelError, match="without the states of committed tokens"):
        fit_gate(data, KEY, tiny_draft(), GateShape(scope="context"), QUICK)


def test_it_beats_chance_on_held_out_prompts(fitted: Any) -> None:
    found = fitted.card["scores"]
    assert found["auc"] > 0.6
    assert found["auc_by_index"]["1"] > 0.55
    assert found["brier"] < 0.98 * found["brier_of_the_mean"]
    assert found["ece"] < 0.15


def learnable() -> Rollouts:
    """600 drafts of two tokens, whose acceptance only the first entry of the state that predicted them tells."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1200, 64, generator=generator)
    chance = torch.sigmoid(4 * hidden[:, 0])
    drawn = torch.bernoulli(chance, generator=generator).bool().view(600, 2)
    accepted = torch.stack([drawn[:, 0], drawn.all(1)], dim=1).flatten()
    known = torch.stack([torch.ones(600, dtype=torch.bool), drawn[:, 0]], dim=1).flatten()
    same = torch.full((1200,), 0.5)
    return Rollouts(
        hidden=hidden,
        token=torch.full((1200,), 65),
        prob=same,
        entropy=same,
        margin=same,
        index=torch.arange(1200) % 2 + 1,
        accepted=accepted,
        accept_prob=torch.where(known, chance, torch.nan),
        step=torch.arange(1200) // 2,
        step_prompt=torch.arange(600) % 40,
        step_context=torch.full((600,), 10),
        step_root=torch.full((600,), 66),
    )


@pytest.mark.parametrize(("label", "divisor"), [("conditional", 1), ("soft", 1), ("conditional", 2)])
def test_other_labels_and_shapes_find_what_only_states_tell(label: str, divisor: int) -> None:
    shape = GateShape(scalars=False, step_pos=False, width_divisor=divisor)
    options = replace(QUICK, label=label, batch_tokens=64)
    found = fit_gate(learnable(), KEY, tiny_draft(), shape, options).card["scores"]
    assert found["auc"] > 0.7
    assert found["brier"] < 0.9 * found["brier_of_the_mean"]


def test_shuffled_tokens_and_states_tell_nothing(data: Rollouts) -> None:
    """The score above is no artefact of the split or of the place in the draft."""
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    names = ("hidden", "token", "prob", "entropy", "margin")
    mixed = replace(data, **{name: getattr(data, name)[order] for name in names})
    found = fit_gate(mixed, KEY, tiny_draft(), GateShape(), replace(QUICK, epochs=2)).card["scores"]
    assert abs(found["auc_by_index"]["1"] - 0.5) < 0.2


def test_a_card_brings_the_gate_back(fitted: Any, data: Rollouts, tmp_path: Any) -> None:
    again = stored_gate(load_artefact(fitted.save(tmp_path / "gate.json")), tiny_draft())
    assert again.shape.max_index == GAMMA
    assert draft_chances(again, data, slice(0, 5)) == pytest.approx(
        draft_chances(stored_gate(fitted, tiny_draft()), data, slice(0, 5)), abs=1e-6
    )
    assert float(again.temperature) == pytest.approx(fitted.card["scores"]["temperature"])


def test_one_prompt_is_too_few(data: Rollouts) -> None:
    alone = replace(data, step_prompt=torch.zeros_like(data.step_prompt))
    with pytest.raises(ModelError, match=r"1 prompt\(s\)"):
        fit_gate(alone, KEY, tiny_draft(), GateShape(), QUICK)
