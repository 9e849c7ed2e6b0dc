"""Trained stop rules with heads whose answers are known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.controllers.heads import AcceptanceHead, ResidualHead, ScalarHead, block_features, loaded
from specbench.controllers.trained import ScalarStop, SpecDecPP, TrainedStop, TunedLength
from specbench.decoding.protocol import Block
from specbench.models.artefact import Artefact, Artefacts

KEY = {"target": "t", "drafter": "sps"}


class Says(AcceptanceHead):
    """Takes its features' first column for the chance."""

    def forward(self, features: Tensor) -> Tensor:
        return features[:, 0].logit()


def state_block(first: int, *chances: float) -> Block:
    return Block(first, [1] * len(chances), hidden=torch.tensor([[chance] for chance in chances]))


def stop(**fields: Any) -> SpecDecPP:
    return SpecDecPP(num_draft_tokens=20, head=Says(), **({"threshold": 0.5, "state": "predictor"} | fields))


def asked(controller: TrainedStop, chances: list[float]) -> list[bool]:
    controller.start_step(20)
    return [controller.more(state_block(first, chance)) for first, chance in enumerate(chances)]


def test_conditional_chances_multiply() -> None:
    controller = stop()
    assert asked(controller, [0.9, 0.8, 0.8, 0.8]) == [True, True, True, False]
    assert controller.score == pytest.approx(0.9 * 0.8**3)
    assert asked(controller, [0.9]) == [True]  # a step starts anew
    assert controller.score == pytest.approx(0.9)


def test_chances_of_survival_do_not() -> None:
    controller = stop(conditional=False)
    assert asked(controller, [0.9, 0.6, 0.6, 0.6, 0.4]) == [True, True, True, True, False]


def test_the_chance_of_every_token_is_noted() -> None:
    controller = stop()
    asked(controller, [0.9, 0.8])
    assert controller.notes() == {"conditional_chances": pytest.approx([0.9, 0.8])}
    asked(controller, [0.7])
    assert controller.notes() == {"conditional_chances": pytest.approx([0.7])}  # of this step only
    survival = stop(conditional=False)
    asked(survival, [0.9])
    assert survival.notes() == {"chances": pytest.approx([0.9])}


def test_with_own_states_each_chance_is_of_the_token_before() -> None:
    controller = stop(state="own")
    asked(controller, [0.5, 0.9, 0.8])
    assert controller.notes() == {"conditional_chances": pytest.approx([0.9, 0.8])}


def test_a_block_counts_like_its_tokens_one_by_one() -> None:
    one, two = stop(threshold=0.1), stop(threshold=0.1)
    asked(one, [0.9, 0.8, 0.7, 0.6])
    two.start_step(20)
    two.more(state_block(0, 0.9, 0.8, 0.7))
    two.more(state_block(3, 0.6))
    assert one.score == pytest.approx(two.score)


def test_own_states_judge_the_token_before() -> None:
    """The state that comes with the first token has read the root: no drafted token is judged by it."""
    controller = stop(state="own")
    assert asked(controller, [0.01, 0.8, 0.4]) == [True, True, False]
    assert controller.score == pytest.approx(0.8 * 0.4)


def test_at_least_so_many_tokens() -> None:
    assert asked(stop(min_draft_tokens=3), [0.1, 0.1, 0.1]) == [True, True, False]


def test_the_temperature_calibrates() -> None:
    head = Says()
    head.temperature.fill_(2.0)
    chance = head.probability(torch.tensor([[0.9]]))
    assert float(chance) == pytest.approx(1 / (1 + (0.1 / 0.9) ** 0.5), abs=1e-6)
    head.temperature.fill_(1.0)
    head.offset.fill_(torch.tensor(6.0).log())  # odds of 9 become 54
    assert float(head.probability(torch.tensor([[0.9]]))) == pytest.approx(54 / 55, abs=1e-6)


# ---- features and heads


def test_scalar_features_of_a_block() -> None:
    block = Block(
        3, [5, 6], prob=torch.tensor([0.5, 0.0]), entropy=torch.tensor([1.0, 2.0]), margin=torch.tensor([3.0, 4.0])
    )
    features = block_features(block)
    assert features[0].tolist() == pytest.approx([-0.6931472, 1.0, 3.0, 4.0])
    assert features[1, 3] == 5.0
    assert features.isfinite().all()


def test_a_logistic_head_is_a_logistic_regression() -> None:
    head = ScalarHead(0)
    data = torch.randn(50, 4, generator=torch.Generator().manual_seed(1)) * torch.tensor([1.0, 5.0, 2.0, 3.0]) + 4
    head.standardise(data)
    x = (data - data.mean(0)) / data.std(0)
    expected = x @ head.out.weight[0] + head.out.bias
    torch.testing.assert_close(head(data), expected)


def test_shared_units_are_one_weight_applied_again() -> None:
    torch.manual_seed(0)
    shared, separate = ResidualHead(6, 3, shared=True), ResidualHead(6, 3)
    assert sum("units" in name for name in shared.state_dict()) == 2
    assert sum("units" in name for name in separate.state_dict()) == 6
    for unit in separate.units:
        unit.load_state_dict(shared.units[0].state_dict())
    separate.out.load_state_dict(shared.out.state_dict())
    x = torch.randn(4, 6)
    torch.testing.assert_close(shared(x), separate(x))
    one_layer = ResidualHead(6, 1)
    one_layer.units[0].load_state_dict(shared.units[0].state_dict())
    one_layer.out.load_state_dict(shared.out.state_dict())
    assert not torch.allclose(shared(x), one_layer(x))


@pytest.mark.parametrize("head", [ScalarHead(0), ScalarHead(5), ResidualHead(4, 2), ResidualHead(4, 2, shared=True)])
def test_heads_come_back_from_their_tensors(head: AcceptanceHead) -> None:
    head.temperature.fill_(1.7)
    again = loaded(type(head)(**head.values()), head.state_dict())
    x = torch.randn(3, 4)
    torch.testing.assert_close(again.probability(x), head.probability(x))
    assert not any(parameter.requires_grad for parameter in again.parameters())


# ---- from artefacts


def stored(tmp_path: Any, part: Artefact) -> Artefacts:
    part.save(tmp_path / f"{part.kind}.json")
    return Artefacts(KEY, (tmp_path,))


def config(**fields: Any) -> Any:
    defaults = {"num_draft_tokens": 9, "min_draft_tokens": 2, "threshold": "auto", "block_size": 3, "artefact": None}
    return SimpleNamespace(**{**defaults, "state": "own", **fields})


def test_auto_is_the_cards_threshold(tmp_path: Any) -> None:
    head = ScalarHead(2)
    part = Artefact("scalars", KEY, {**head.values(), "label": "survive", "threshold": 0.35}, {}, head.state_dict())
    artefacts = stored(tmp_path, part)
    built = ScalarStop.build(config(), artefacts)
    assert (built.threshold, built.conditional, built.block_size, built.min_draft_tokens) == (0.35, False, 3, 2)
    assert built.signals == {"prob", "entropy", "margin"}
    assert ScalarStop.build(config(threshold=0.6), artefacts).threshold == 0.6


def test_a_head_for_the_other_state_is_refused(tmp_path: Any) -> None:
    head = ResidualHead(4, 2)
    values = {**head.values(), "label": "conditional", "threshold": 0.7}
    artefacts = stored(tmp_path, Artefact("specdecpp", {**KEY, "state": "predictor"}, values, {}, head.state_dict()))
    assert SpecDecPP.build(config(state="predictor"), artefacts).conditional
    with pytest.raises(Exception, match="state: predictor, here own"):
        SpecDecPP.build(config(state="own"), artefacts)


def test_the_tuned_length_is_the_cards_within_the_cap(tmp_path: Any) -> None:
    artefacts = stored(tmp_path, Artefact("tuned", KEY, {"num_draft_tokens": 7}))
    assert TunedLength.build(config(), artefacts).num_draft_tokens == 7
    assert TunedLength.build(config(num_draft_tokens=4), artefacts).num_draft_tokens == 4
