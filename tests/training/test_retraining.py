"""Training again gives a draft and a gate that are as good: a short version of the commands of docs/training.md."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specbench.analysis.replay import Costs, replay
from specbench.config import compose
from specbench.controllers.fixed import FixedLength
from specbench.controllers.gate import GateShape
from specbench.controllers.pacer import stored_gate
from specbench.hardware.profile import VerifyCurve
from specbench.methods.sps import SpeculativeSampling
from specbench.models.checkpoint import load_model
from specbench.models.draft import load_draft
from specbench.runner.controller_training import traces
from specbench.runner.pacer_training import policies
from specbench.training import prompts
from specbench.training.corpus import batch_files, read_corpus
from specbench.training.distil import held_out_part
from specbench.training.draft import DraftTraining
from specbench.training.gate import draft_chances, fit_gate
from specbench.training.heads import FitOptions
from specbench.training.replay import held_out_acceptance
from specbench.training.rollouts import collect
from tests.controllers.test_pacer import config as pacer_config
from tests.decoding.tinies import decode, tiny_draft
from tests.few_documents import STUBS, few_documents
from tests.training.test_draft import config as draft_config

pytestmark = pytest.mark.slow

SEEDS = (0, 1)
POINTS = 0.02
MORE = (
    "corpus.prompts={user:240,article:0,completion:20,summary:0,own_summary:0,gsm8k:0,mbpp:0,instruction:0}",
    "corpus.batch_size=32",
    "corpus.file_answers=64",
    "corpus.greedy_fraction=1.0",
    "training.layers=[0,1]",
    "training.epochs=4",
    "training.held_out_every=4",
)


def test_another_seed_of_the_draft_reaches_the_same_acceptance(tmp_path: Path) -> None:
    """Another seed means other prompts, other answers and another order; all are judged by the first one's prompts."""
    made = [DraftTraining(draft_config(tmp_path, *MORE, f"name=seed{seed}", f"seed={seed}")) for seed in SEEDS]
    with few_documents(prompts, functions=STUBS):
        folders = [training.run() for training in made]
    examples = read_corpus(batch_files(made[0].folder / "answers"))
    _, held_out = held_out_part(examples, replace(made[0].config.training, held_out=200))
    target = load_model("tiny:eos", dtype=tiny_draft().dtype, device="cpu", cache_dir=tmp_path)
    found = [held_out_acceptance(load_draft(folder, target).decoder, held_out, 4)["all"] for folder in folders]
    rates = [one.rate for one in found]
    assert found[0].drafted > 1000
    assert 0.2 < rates[0] < 0.98
    assert max(rates) - min(rates) <= POINTS, rates


def test_another_seed_of_the_gate_stops_as_well(tmp_path: Path) -> None:
    """Gates of other seeds see other prompts of the same collection; all are judged on prompts that none has seen."""
    drafts = decode(SpeculativeSampling(tiny_draft(), FixedLength(2)), temperature=1.0)
    texts = [(256, 65 + number % 26, *range(70 + number % 40, 76 + number % 97)) for number in range(64)]
    options: dict[str, Any] = {"num_draft_tokens": 8, "max_new_tokens": 64}
    known, unseen = (collect(drafts, part, **options, meta={"max_new_tokens": 64}) for part in (texts[:48], texts[48:]))
    rates = []
    for seed in SEEDS:
        fit = FitOptions(label="survive", epochs=6, lr=2e-3, batch_tokens=256, seed=seed)
        gate = stored_gate(fit_gate(known, {"drafter": "sps"}, tiny_draft(), GateShape(), fit), tiny_draft())
        rule = policies(pacer_config(), gate.shape, 8)[2, 0.5, 1.0]
        judged = traces(unseen, lambda rows, gate=gate: draft_chances(gate, unseen, rows))
        outcome = replay(judged, rule, Costs(0.1, VerifyCurve({1: 1.0, 8: 1.2}), 0.01), block_size=2)
        rates.append(outcome.accepted / outcome.drafted)
    assert max(rates) - min(rates) <= POINTS, rates


def test_the_commands_of_the_documentation_compose() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("python scripts/train_") and "--prompts mix" in line]
    assert len(lines) == 4
    for line in lines:
        words = [word for word in line.split()[2:] if "=" in word and not word.startswith("data")]
        assert compose(["model=smollm2", *words]).num_samples == 300
