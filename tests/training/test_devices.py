"""Everything that trains runs on every device of the machine: tensors of two devices never meet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.controllers.block_rules import BlockRule
from specbench.controllers.fixed import FixedLength
from specbench.controllers.gate import GateShape
from specbench.controllers.pacer import PacerStop, stored_gate
from specbench.controllers.step_gate import StepGate
from specbench.hardware.devices import available_devices
from specbench.methods.sps import SpeculativeSampling
from specbench.models.batch import BatchRequest, answer_batch
from specbench.models.decoder import Decoder
from specbench.models.tiny import SPEC, first_layers, target_weights
from specbench.training.corpus import Example
from specbench.training.distil import Distillation, held_out_part, reduced_vocabulary, start_draft
from specbench.training.gate import draft_chances, fit_gate
from specbench.training.heads import FitOptions, fit_scalars, fit_specdecpp
from specbench.training.rollouts import collect
from tests.decoding.tinies import DRAFT_LAYERS, decode
from tests.training.tiny_corpus import SETTINGS

PROMPTS = [(256, *range(65 + i, 70 + 2 * i)) for i in range(24)]

every_device = pytest.mark.parametrize("device", available_devices())


def on(device: str, layers: int = SPEC.num_layers) -> Decoder:
    decoder = Decoder(replace(SPEC, num_layers=layers), dtype=torch.float32, device=device)
    weights = first_layers(target_weights(), layers)
    for name, slot in decoder.slots().items():
        slot.copy_(weights[name])
    return decoder.finish()


@every_device
def test_a_draft_is_made_and_goes_on_after_a_kill(device: str, tmp_path: Path) -> None:
    target = on(device)
    requests = [BatchRequest(prompt, 12, temperature=i % 2 * 1.0) for i, prompt in enumerate(PROMPTS)]
    answers = answer_batch(target, requests, stop_ids=[0], seed=0, size=8)
    examples = [
        Example("user", True, torch.tensor(prompt), torch.tensor(one.tokens), one.states, one.log_z)
        for prompt, one in zip(PROMPTS, answers, strict=True)
    ]
    settings = replace(SETTINGS, layers=[0, 1], vocab_size=200, checkpoint_every=1)
    training, held_out = held_out_part(examples, settings)

    def distillation() -> Distillation:
        draft = start_draft(target, settings.layers, reduced_vocabulary(training, settings.vocab_size, SPEC.vocab_size))
        head = draft.head.weight
        assert head is not None
        given: dict[str, Any] = {"training": training, "held_out": held_out, "config": settings, "folder": tmp_path}
        return Distillation(draft=draft, head=head, seed=0, keep=lambda progress: None, **given)

    distillation().run(until=2)
    found = distillation().run(until=4)
    assert found.step == 4
    assert 0 <= found.curve[0]["acceptance_rate"]["all"] <= 1


@every_device
@pytest.mark.parametrize("scope", ["step", "context"])
def test_a_gate_is_collected_for_fitted_and_asked(device: str, scope: str) -> None:
    target, draft = on(device), on(device, DRAFT_LAYERS)
    drafts = decode(SpeculativeSampling(draft, FixedLength(2)), decoder=target, temperature=1.0)
    data = collect(drafts, PROMPTS[:8], num_draft_tokens=6, max_new_tokens=24, context=scope == "context")
    shape, options = GateShape(scope=scope), FitOptions(label="survive", epochs=1, held_out=0.25)
    gate = stored_gate(fit_gate(data, {}, draft, shape, options), draft)
    assert len(draft_chances(gate, data, slice(0, 3))) == 3
    for fit in (fit_scalars, fit_specdecpp):
        assert 0 <= fit(data, {}, options=replace(options, label="conditional")).card["scores"]["brier"] <= 1
    controller = PacerStop(num_draft_tokens=6, block_size=2, gate=StepGate(gate, 6), rule=BlockRule(0.1))
    found = decode(SpeculativeSampling(draft, controller), decoder=target).generate(
        PROMPTS[0], max_new_tokens=12, seed=0
    )
    assert len(found.tokens) == 12
