"""From held-out prompts to a stored gate, and a run that finds it: for this pair and setting only."""

from __future__ import annotations

import json
import runpy
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specbench.analysis.replay import BlockThreshold, steps_of
from specbench.config import RunConfig
from specbench.controllers.block_rules import BlockRule
from specbench.controllers.pacer import stored_gate
from specbench.controllers.quick_gate import QuickGate
from specbench.decoding.protocol import Block
from specbench.models.artefact import Artefact, load_artefact
from specbench.runner.controller_training import rollouts, traces
from specbench.runner.held_out import held_out
from specbench.runner.pacer_training import gate_costs, train_pacer
from specbench.runner.session import Session
from specbench.training.gate import GATE_OPTIONS, draft_chances
from specbench.training.rollouts import Rollouts
from specbench.types import ConfigError
from tests.runner.runs import Measure, tiny_config

PACER = ("method=pacer", "sampling.max_new_tokens=24", "artefact.if_missing=error")


@pytest.fixture(scope="module")
def prompts_file(tmp_path_factory: Any) -> Path:
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    lines = [{"prompt": f"Tell me about number {number}, and once more about it."} for number in range(6)]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return file


@pytest.fixture(scope="module")
def config(tmp_path_factory: Any, cache: Path) -> RunConfig:
    return tiny_config((*PACER, "num_samples=6"), tmp_path_factory.mktemp("results"), cache)


def test_a_run_finds_the_gate_that_was_made_for_it(config: RunConfig, prompts_file: Path, measure: Measure) -> None:
    with pytest.raises(ConfigError, match=r"no pacer is stored.*scripts/train_pacer\.py"):
        measure(*PACER)
    session = Session(config)
    prompts = held_out(config, session, prompts_file)
    data = rollouts(config, session, prompts, num_draft_tokens=24)
    part = train_pacer(config, session, data)
    assert 1 <= part.values["block_size"] <= 6
    assert part.values["num_draft_tokens"] == 16
    assert set(part.card["replay"]) == {"1", "2", "3", "4", "5", "6"}
    assert 0 <= part.card["scalars_only"]["brier"] <= 1
    path = part.save(session.artefact_folder / "pacer.json")
    try:
        assert_replays_are_runs(session, part, data, prompts)
        done = measure(*PACER)
        assert done.error is None
        assert done.summary["controller"] == "pacer"
        assert done.summary["exact_match_rate"] == 1.0
        lengths = np.concatenate(done.steps["block_lengths"].dropna().tolist())
        assert lengths.max() <= part.values["block_size"]
        with pytest.raises(ConfigError, match=r"sampling: greedy, here temperature=0\.7"):
            measure(*PACER, "sampling.temperature=0.7")
        with pytest.raises(ConfigError, match="feature: pred_state, here both"):
            measure(*PACER, "method.controller.feature=both")
    finally:
        path.unlink()


def test_asking_costs_what_it_takes_in_the_running_decoder(
    config: RunConfig, prompts_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(config)
    data = rollouts(config, session, held_out(config, session, prompts_file), num_draft_tokens=8)
    gate = stored_gate(train_pacer(config, session, data), session.parts.draft)
    chances = QuickGate.chances

    def slow(self: QuickGate, block: Block) -> list[float]:
        time.sleep(0.05)
        return chances(self, block)

    monkeypatch.setattr(QuickGate, "chances", slow)
    assert 0.04 < gate_costs(config, session, gate, tokens=8).check < 0.5
    assert gate_costs(config, session, gate, tokens=1).check == 0.0


def assert_replays_are_runs(session: Session, part: Artefact, data: Rollouts, prompts: list[list[int]]) -> None:
    """The tuner's counts are those of a run with the same rule, which stops some drafts and lets others go on."""
    gate = stored_gate(part, session.parts.draft)
    known = traces(data, lambda rows: draft_chances(gate, data, rows))
    middle = float(np.median([score[0] for trace in known for score in (trace.scores or {}).values() if len(score)]))
    controller = replace(session.config.method.controller, block_size=2, threshold=middle, threshold_growth=1.0)
    generator = session.build(replace(session.config.method, controller=controller))
    rule = BlockThreshold(16, block_size=2, rule=BlockRule(middle, 1.0, controller.threshold_max), min_draft_tokens=2)
    lengths = set()
    for prompt, trace in zip(prompts, known, strict=True):
        generator.reset()
        answer = generator.generate(prompt, max_new_tokens=24, seed=0, stop_ids=sorted(session.model.stop_ids))
        replayed = list(steps_of(trace, rule))[:-1]  # the end is not seen
        for found, step in zip(replayed, answer.steps, strict=False):
            assert found.accepted == step.num_accepted
            if step.stop_reason != "stop_id":  # which a replay does not see either
                assert found.drafted == step.num_draft_tokens, step.stop_reason
                lengths.add(found.drafted)
    assert len(lengths) > 1


def test_the_command_stores_a_card(config: RunConfig, prompts_file: Path, tmp_path: Path, repo_root: Path) -> None:
    main = runpy.run_path(str(repo_root / "scripts" / "train_pacer.py"))["fit"]
    words = ["model=tiny", "hardware.device=cpu", "hardware.dtype=float32", "hardware.num_threads=1"]
    paths = [f"paths.cache_dir={config.paths.cache_dir}", f"paths.results_dir={tmp_path}"]
    shape = ["method.controller.feature=own_state", "method.controller.label=conditional", "method.controller.agg=prod"]
    options = SimpleNamespace(
        overrides=[*words, *paths, *shape, "num_samples=4", "sampling.max_new_tokens=16"],
        prompts=prompts_file,
        num_draft_tokens=6,
        steps=tmp_path / "steps.safetensors",
        lr=GATE_OPTIONS.lr,
        epochs=1,
        out=tmp_path / "out",
    )
    found = load_artefact(main(options, ["model=tiny", f"paths.cache_dir={config.paths.cache_dir}", "--epochs", "1"]))
    assert found.kind == "pacer"
    assert (found.key["feature"], found.key["label"]) == ("own_state", "conditional")
    assert found.card["data"]["num_prompts"] == 4
    assert found.card["command"] == "python scripts/train_pacer.py model=tiny paths.cache_dir=FOLDER --epochs 1"
    with pytest.raises(ConfigError, match=r"method/controller=fixed: legal: pacer"):
        main(SimpleNamespace(**{**vars(options), "overrides": [*words, *paths, "method=sps"]}), [])
