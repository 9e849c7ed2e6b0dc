"""What is collected from speculation is what happened, token for token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.controllers.fixed import FixedLength
from specbench.decoding.sampling import probabilities
from specbench.methods.ar import Autoregressive
from specbench.methods.layer_skip import LayerSkipDrafter
from specbench.methods.sps import SpeculativeSampling
from specbench.training.rollouts import Rollouts, collect, load_rollouts
from specbench.types import ConfigError, ModelError, Sampling
from tests.decoding.tinies import decode, tiny_draft, tiny_target

PROMPTS = ((256, 84, 104, 101, 32), (65,) * 12, (256, *range(60, 90)))
GAMMA, COUNT = 6, 24


def collected(drafter: Any = None, **changes: Any) -> Rollouts:
    sampling = {key: changes.pop(key) for key in ("temperature", "top_k") if key in changes}
    generator = decode(drafter or SpeculativeSampling(tiny_draft(), FixedLength(2)), **sampling)
    options = {"num_draft_tokens": GAMMA, "max_new_tokens": COUNT, "hidden_dtype": torch.float32}
    return collect(generator, PROMPTS, **{**options, **changes})


@pytest.fixture(scope="module")
def greedy() -> Rollouts:
    return collected()


def live_steps() -> list[tuple[int, Any]]:
    """(prompt, step) of plain runs with drafts as long."""
    generator = decode(SpeculativeSampling(tiny_draft(), FixedLength(GAMMA)))
    answers = [generator.generate(prompt, max_new_tokens=COUNT, seed=0) for prompt in PROMPTS]
    return [(number, step) for number, answer in enumerate(answers) for step in answer.steps if step.num_draft_tokens]


def test_steps_and_tokens_are_those_of_a_plain_run(greedy: Rollouts) -> None:
    steps = live_steps()
    assert len(greedy.step_prompt) == len(steps)
    assert greedy.step_prompt.tolist() == [prompt for prompt, _ in steps]
    assert greedy.step_context.tolist() == [step.context_length for _, step in steps]
    assert greedy.token.tolist() == [token for _, step in steps for token in step.draft_tokens]
    assert greedy.num_accepted.tolist() == [step.num_accepted for _, step in steps]
    assert greedy.prompt.tolist() == [prompt for prompt, step in steps for _ in step.draft_tokens]
    assert {"num_draft_tokens": GAMMA, "num_prompts": 3}.items() <= greedy.meta.items()


def test_accepted_tokens_lead_their_step(greedy: Rollouts) -> None:
    for number in range(len(greedy.step_prompt)):
        own = greedy.step == number
        assert greedy.index[own].tolist() == list(range(1, int(own.sum()) + 1))
        accepted = greedy.accepted[own].tolist()
        assert accepted == sorted(accepted, reverse=True)


def test_what_is_accepted_for_sure_is_known_up_to_the_first_rejection(greedy: Rollouts) -> None:
    for number, count in enumerate(greedy.num_accepted.tolist()):
        chances = greedy.accept_prob[greedy.step == number]
        assert chances[:count].tolist() == [1.0] * count
        assert chances[count : count + 1].tolist() in ([0.0], [])
        assert chances[count + 1 :].isnan().all()


def test_states_predicted_their_token_and_roots_come_before(greedy: Rollouts) -> None:
    """The state goes through the draft's head to the very token; token j stands at position context + j - 1."""
    draft = tiny_draft()
    logits = draft.head(greedy.hidden)
    assert logits.argmax(-1).tolist() == greedy.token.tolist()
    log_p = logits.log_softmax(-1)
    torch.testing.assert_close(log_p.gather(1, greedy.token[:, None])[:, 0].exp(), greedy.prob, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(-(log_p.exp() * log_p).sum(-1), greedy.entropy, atol=1e-3, rtol=1e-3)
    top = logits.topk(2).values
    torch.testing.assert_close(top[:, 0] - top[:, 1], greedy.margin, atol=1e-3, rtol=1e-3)
    first = int(greedy.step_context[0])
    assert first == len(PROMPTS[0])
    assert int(greedy.step_root[0]) == PROMPTS[0][-1]


def test_sampled_tokens_carry_the_chance_of_the_rule() -> None:
    sampling = {"temperature": 0.9, "top_k": 20}
    data = collected(**sampling)
    known = ~data.accept_prob.isnan()
    assert known.sum() == (data.index <= data.num_accepted[data.step] + 1).sum()
    chances = data.accept_prob[known]
    assert 0 <= float(chances.min()) < 0.5
    assert float(chances.max()) == 1.0
    # Tokens of the first step, against the target's own distribution after the prompt.
    own = (data.step == 0) & known
    tokens = data.token[own].tolist()
    logits = tiny_target().forward(torch.tensor([[*PROMPTS[0], *tokens[:-1]]])).logits[0, -len(tokens) :]
    p = probabilities(logits, Sampling(**sampling))
    expected = [min(1.0, float(row[token]) / float(q)) for row, token, q in zip(p, tokens, data.prob[own], strict=True)]
    assert chances[: len(tokens)].tolist() == pytest.approx(expected, abs=2e-3)
    # Drawn acceptance follows the chance.
    assert abs(float(data.accepted[known].float().mean() - chances.mean())) < 0.2


def test_any_drafter_that_takes_a_controller_will_do_and_keeps_its_own() -> None:
    controller = FixedLength(3)
    drafter = LayerSkipDrafter(controller, frozenset({8, 9, 10, 11}))
    data = collected(drafter)
    assert drafter.controller is controller
    assert data.hidden.shape == (len(data), 64)
    assert 0 < int(data.accepted.sum()) < len(data)


def test_drafters_without_a_controller_and_answers_without_drafts_are_refused() -> None:
    with pytest.raises(ConfigError, match="Autoregressive takes no controller"):
        collected(Autoregressive())
    with pytest.raises(ModelError, match="nothing was drafted"):
        collected(max_new_tokens=1)


def test_stop_ids_end_a_draft(greedy: Rollouts) -> None:
    stop = int(greedy.token[greedy.accepted][3])
    data = collected(stop_ids=[stop])
    ends = [int(data.token[data.step == number][-1]) for number in range(len(data.step_prompt))]
    assert stop in ends
    for number in range(len(data.step_prompt)):
        assert stop not in data.token[data.step == number][:-1].tolist()


def test_steps_are_saved_and_read(greedy: Rollouts, tmp_path: Path) -> None:
    greedy.save(tmp_path / "steps.safetensors")
    again = load_rollouts(tmp_path / "steps.safetensors")
    assert torch.equal(again.hidden, greedy.hidden)
    assert torch.equal(again.accepted, greedy.accepted)
    assert torch.equal(again.accept_prob.nan_to_num(-1), greedy.accept_prob.nan_to_num(-1))
    assert again.meta == greedy.meta
    (tmp_path / "other.safetensors").write_bytes(b"no")
    with pytest.raises(ModelError, match=r"other\.safetensors holds no collected steps"):
        load_rollouts(tmp_path / "other.safetensors")
