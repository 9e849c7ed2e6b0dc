"""From held-out prompts to a stored controller, and a run that finds it: for this pair and setting only."""

from __future__ import annotations

import itertools
import json
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specbench.analysis.replay import Fixed, replay
from specbench.config import RunConfig
from specbench.controllers.fixed import FixedLength
from specbench.decoding.loop import SpeculativeDecoding
from specbench.hardware.profile import seconds
from specbench.methods import chain
from specbench.models.artefact import load_artefact
from specbench.runner.controller_training import measured_costs, rollouts, score_with, traces, train
from specbench.runner.held_out import held_out
from specbench.runner.session import Session
from specbench.training.rollouts import Rollouts
from specbench.types import ConfigError, DataError, ModelError
from tests.runner.runs import Measure, tiny_config

SPS = ("method=sps", "method/controller=fixed", "sampling.max_new_tokens=24")
LINES = [
    {"prompt": "Once more, and once more, and once more."},
    {"instruction": "Add them.", "instances": [{"input": "1 and 2", "output": "3"}]},
    *({"prompt": f"Tell me about number {number}."} for number in range(6)),
]


@pytest.fixture(scope="module")
def prompts_file(tmp_path_factory: Any) -> Path:
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in LINES) + "\n")
    return file


@pytest.fixture(scope="module")
def config(tmp_path_factory: Any, cache: Path) -> RunConfig:
    return tiny_config((*SPS, "num_samples=8"), tmp_path_factory.mktemp("results"), cache)


@pytest.fixture(scope="module")
def session(config: RunConfig) -> Session:
    return Session(config)


@pytest.fixture(scope="module")
def data(config: RunConfig, session: Session, prompts_file: Path) -> Rollouts:
    prompts = held_out(config, session, prompts_file)
    return rollouts(config, session, prompts, num_draft_tokens=8)


def test_lines_become_prompts_and_bad_ones_are_named(
    config: RunConfig, session: Session, prompts_file: Path, tmp_path: Path
) -> None:
    prompts = held_out(config, session, prompts_file)
    assert len(prompts) == 8
    assert "Add them.\n\n1 and 2" in session.chat.decode(prompts[1])
    bad = tmp_path / "bad.jsonl"
    bad.write_text(prompts_file.read_text().splitlines()[0] + '\n{"text": "x"}\n')
    with pytest.raises(DataError, match=r"bad\.jsonl:2: needs `prompt`"):
        held_out(config, session, bad)


def test_traces_of_collected_steps_replay_to_the_same_counts(data: Rollouts) -> None:
    """Drafts as long as the collected ones take the very steps that were collected; wrong stop ids are not seen."""
    found = replay(traces(data), Fixed(8))
    assert 0 <= found.steps - len(data.step_prompt) <= 8  # an answer's last step may have had no room for a draft
    assert found.emitted == int(data.step_emitted.sum())
    assert found.accepted == int(data.accepted.sum())
    assert found.drafted >= len(data)
    assert len(traces(data, only=torch.tensor([0, 3]))) == 2


def test_a_trace_is_as_long_as_the_answer(config: RunConfig, session: Session) -> None:
    """Also where the last draft was accepted whole, so that its bonus token ends the answer."""
    prompts = [session.encode_question("Name seven rivers."), session.encode_question("Count to nine.")]
    for count in range(9, 15):
        small = replace(config, sampling=replace(config.sampling, max_new_tokens=count))
        data = rollouts(small, session, prompts, num_draft_tokens=3)
        answers = [
            session.build(small.method).generate(prompt, max_new_tokens=count, seed=0, stop_ids=session.model.stop_ids)
            for prompt in prompts
        ]
        assert [len(trace.right) for trace in traces(data)] == [len(answer.tokens) for answer in answers]


@pytest.mark.parametrize("kind", ["tuned", "scalars"])
def test_costs_are_those_of_the_rule_itself(
    kind: str, config: RunConfig, session: Session, data: Rollouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What collecting took, where every signal is worked out, has no part in the choice."""
    asked: list[frozenset[str]] = []
    with_signals = chain.with_signals

    def noted(block: Any, wanted: Any, *rest: Any, **more: Any) -> Any:
        asked.append(frozenset(wanted))
        return with_signals(block, wanted, *rest, **more)

    monkeypatch.setattr(chain, "with_signals", noted)
    slow = replace(data, meta={**data.meta, "draft_s": 1e6})
    part = train(kind, config, session, slow)
    assert part.card["measured"]["draft_s"] < 10
    assert set(asked) == ({frozenset({"prob", "entropy", "margin"})} if kind == "scalars" else set())


@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_a_stored_curve_of_another_hour_gives_its_shape_only(
    config: RunConfig, session: Session, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafting is measured now, so a pass must be too: lengths depend on the ratio of the two."""
    now = session.curve
    monkeypatch.setitem(session.__dict__, "curve", now.times(factor))
    found, other = measured_costs(config, session, [FixedLength(3), FixedLength(5)])
    assert found.verify == other.verify
    for rows in (1, 6):
        assert 0.05 < seconds(found.verify, rows) / seconds(now, rows) < 20  # another test may be running


def test_costs_are_those_of_a_drafter_that_has_not_seen_the_answer(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same question is answered again and again, and phrases learnt from its answer would make drafting cheap."""
    known: list[int] = []
    generate = SpeculativeDecoding.generate

    def noted(self: Any, *given: Any, **more: Any) -> Any:
        known.append(len(self.drafter.model.engine.pool))
        return generate(self, *given, **more)

    monkeypatch.setattr(SpeculativeDecoding, "generate", noted)
    for scope, empty in (("sample", True), ("run", False)):
        known.clear()
        words = ("method=ouroboros", f"method.scope={scope}", "sampling.max_new_tokens=24")
        config = tiny_config(words, tmp_path, cache)
        measured_costs(config, Session(config), [FixedLength(3)])
        assert len(known) > 1
        assert (not any(known)) is empty


def test_a_method_that_drafts_nothing_has_no_costs(config: RunConfig, session: Session) -> None:
    with pytest.raises(ModelError, match="method=sps drafted nothing"):
        measured_costs(config, session, [FixedLength(3), FixedLength(0)])


def test_scores_follow_a_draft_from_every_token_on(config: RunConfig, session: Session, data: Rollouts) -> None:
    part = train("scalars", config, session, data)
    scores = score_with(part, data)
    whole, rest = scores(slice(0, 5)), scores(slice(1, 5))
    assert len(whole) == 5
    assert all(a >= b for a, b in itertools.pairwise(whole))  # chances multiply
    assert len(rest) == 4
    (trace,) = traces(data, scores, only=torch.tensor([0]))
    assert trace.scores is not None
    assert list(trace.scores[0])[:5] == pytest.approx(list(whole))


@pytest.mark.parametrize(("kind", "options"), [("tuned", {}), ("scalars", {}), ("specdecpp", {"state": "own"})])
def test_what_is_trained_is_found_by_a_run_of_this_setting_and_no_other(
    kind: str, options: dict[str, str], config: RunConfig, session: Session, data: Rollouts, measure: Measure
) -> None:
    part = train(kind, config, session, data, **options)
    path = part.save(session.artefact_folder / f"{kind}.json")
    try:
        words = ("method=sps", f"method/controller={kind}", "sampling.max_new_tokens=24")
        done = measure(*words)
        assert done.error is None
        assert done.summary["controller"] == kind
        assert done.summary["exact_match_rate"] == 1.0
        lengths = done.steps["num_draft_tokens"].dropna()
        if kind == "tuned":
            assert lengths.max() == part.values["num_draft_tokens"]
        else:
            assert np.concatenate(done.steps["block_scores"].dropna().tolist()).size > 0
        with pytest.raises(ConfigError, match=r"another sampling: greedy, here temperature=0\.7"):
            measure(*words, "sampling.temperature=0.7", "artefact.if_missing=error")
    finally:
        path.unlink()


def test_without_one_the_error_names_the_command(measure: Measure) -> None:
    with pytest.raises(ConfigError, match=r"no specdecpp is stored.*scripts/train_controller\.py specdecpp"):
        measure("method=sps", "method/controller=specdecpp", "artefact.if_missing=error")


def test_the_command_stores_a_card(config: RunConfig, prompts_file: Path, tmp_path: Path, repo_root: Path) -> None:
    main = runpy.run_path(str(repo_root / "scripts" / "train_controller.py"))["fit"]
    words = ["model=tiny", "hardware.device=cpu", "hardware.dtype=float32", "hardware.num_threads=1"]
    paths = [f"paths.cache_dir={config.paths.cache_dir}", f"paths.results_dir={tmp_path}"]
    namespace = type("Options", (), {})()
    namespace.kind, namespace.prompts, namespace.steps = "tuned", prompts_file, tmp_path / "steps.safetensors"
    namespace.num_draft_tokens, namespace.out, namespace.state = 6, tmp_path / "out", "own"
    namespace.overrides = [*words, *paths, "num_samples=3", "sampling.max_new_tokens=12"]
    found = load_artefact(main(namespace, ["tuned", "model=tiny", f"data.dir={tmp_path}", "num_samples=3"]))
    assert found.kind == "tuned"
    assert 1 <= found.values["num_draft_tokens"] <= 6
    assert found.card["data"]["num_prompts"] == 3
    assert found.card["command"] == "python scripts/train_controller.py tuned model=tiny data.dir=FOLDER num_samples=3"
    assert namespace.steps.is_file()
    assert load_artefact(main(namespace, [])).key == found.key  # from the kept steps
