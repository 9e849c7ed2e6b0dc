"""Replayed runs: what real greedy speculation does on the same prompts, and nothing that was not measured."""

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest

import specbench.runner
from specbench.config import run_id
from specbench.results.cells import load_cells, load_reconstruction
from specbench.results.summary import load_runs
from specbench.runner.stored import ar_config
from specbench.types import ConfigError
from tests.runner.runs import edited_json, tiny_config

COUNTS = ["num_tokens", "num_steps", "num_accepted", "num_accepted_spine"]
STEP = ["sample_id", "turn", "step", "context_length", "num_accepted", "num_accepted_spine", "num_emitted"]
WORDS = ("method=sps", "task=mt_bench", "num_samples=3", "sampling.max_new_tokens=40")  # two turns a sample


def counts(done) -> pd.DataFrame:
    rows = done.rows()
    return rows.set_index(["sample_id", "turn"])[COUNTS].astype(int).sort_index()


def method_steps(done) -> pd.DataFrame:
    return done.steps[done.steps["arm"] == "method"].reset_index(drop=True)


def assert_same_steps(replayed, real) -> None:
    """Equal step by step, but for the length of drafts that ended with a stop id behind a wrong token."""
    ours, theirs = method_steps(replayed), method_steps(real)
    assert ours[STEP].equals(theirs[STEP])
    unseen = (theirs["stop_reason"] == "stop_id") & (theirs["num_accepted"] < theirs["num_draft_tokens"] - 1)
    assert ours["num_draft_tokens"][~unseen].equals(theirs["num_draft_tokens"][~unseen])
    assert (ours["num_draft_tokens"][unseen] >= theirs["num_draft_tokens"][unseen]).all()
    assert unseen.mean() < 0.2
    assert 0 < theirs["num_accepted"].sum() < theirs["num_draft_tokens"].sum()
    assert replayed.summary["mat"] == real.summary["mat"]


@pytest.mark.parametrize(
    ("variant", "length"),
    [
        ("plain", 3),
        pytest.param("eos", 5, marks=pytest.mark.slow),
        pytest.param("plain", 1, marks=pytest.mark.slow),
        pytest.param("plain", 9, marks=pytest.mark.slow),
        pytest.param("zero", 5, marks=pytest.mark.slow),
    ],
)
def test_a_replay_takes_the_steps_of_the_real_loop(measure, variant, length):
    words = (
        *WORDS,
        f"model.target=tiny:{variant}",
        f"model.draft=tiny:{variant}/draft",
        f"method.controller.num_draft_tokens={length}",
    )
    real, replayed = measure(*words), measure(*words, "measure.acceptance=replay")
    assert replayed.error is None
    for name in ("tokens", "finish_reason"):
        assert list(replayed.rows()[name].map(str)) == list(real.rows()[name].map(str))
    assert counts(replayed).equals(counts(real))
    assert_same_steps(replayed, real)


SMALL = (
    "method=mla",
    "method.budget=0.5",
    "method.reconstruction=none",
    "method.calibration.num_sequences=4",
    "method.calibration.sequence_length=32",
    "method.calibration.held_out=2",
)


@pytest.mark.slow
@pytest.mark.parametrize("converter", ["none", "transmla", "svd"])
def test_a_converted_draft_takes_the_same_steps(measure, converter):
    """One pass over the answer reads keys and values in full, the real loop reads latents token by token."""
    words = (*WORDS[1:], *SMALL, f"method.converter={converter}", "method.controller.num_draft_tokens=4")
    real, replayed = measure(*words), measure(*words, "measure.acceptance=replay")
    assert (real.error, replayed.error) == (None, None)
    assert counts(replayed).equals(counts(real))
    assert_same_steps(replayed, real)
    cells, real_cells = load_cells(replayed.run_dir), load_cells(real.run_dir)
    numbers = ["sample_id", "prompt_sha256", "accepted", "emitted", "steps"]
    assert cells[numbers].equals(real_cells[numbers])
    assert set(cells["acceptance"]) == {"replay"}
    assert set(real_cells["acceptance"]) == {"decode"}
    assert cells[["accepted", "proposed"]].sum().tolist() == [
        replayed.summary["num_accepted"],
        replayed.summary["num_draft_tokens"],
    ]


@pytest.mark.slow
def test_what_an_arm_is_called(measure):
    words = (*WORDS[1:], *SMALL, "measure.acceptance=replay")
    original = load_cells(measure(*words, "method.converter=none", "method.budget=0.25").run_dir).iloc[0]
    assert original[["variant", "budget", "options", "tuning"]].tolist() == ["original", 1.0, "{}", "{}"]
    done = measure(*words, "method.converter=mha2mla", "method.ranks=care")
    converted = load_cells(done.run_dir).iloc[0]
    assert (converted["converter"], converted["variant"], converted["budget"]) == ("care", "none", 0.5)
    assert converted["pair"] == original["pair"] == "tiny <- draft"
    assert "train_params" not in converted["options"]
    layers = load_reconstruction(done.run_dir)
    assert list(layers["layer"]) == [0, 1]
    assert (layers["error_before"] > 0).all()
    cache = done.summary["draft_kv_bytes_per_token"] / (2 * 2 * 2 * 16 * 4)
    assert cache == pytest.approx(0.5, abs=0.06)  # ranks of so small a model come in large steps


def test_nothing_is_measured_that_did_not_happen(measure):
    done = measure(*WORDS, "measure.acceptance=replay")
    rows = done.rows()
    assert not done.samples["timed"].any()
    assert rows[["prefill_s", "decode_s", "ttft_s", "draft_s", "verify_s"]].isna().all(axis=None)
    assert rows[["exact_match", "teacher_agreement", "peak_memory_bytes"]].isna().all(axis=None)
    assert done.steps[done.steps["arm"] == "method"]["draft_s"].isna().all()
    for name in ("tokens_per_second", "walltime_speedup", "decode_s", "exact_match_rate", "cost_ratio"):
        assert done.summary[name] is None
    assert done.summary["num_failed"] == 0


def test_ars_answers_are_decoded_once_for_all_drafts_of_a_target(measure, tmp_path):
    first = measure(*WORDS, "measure.acceptance=replay")
    runs = load_runs(tmp_path / "results")
    assert sorted(runs["method"]) == ["ar", "sps"]
    answered = runs.set_index("method")["finished_at"]["ar"]
    other = measure(*WORDS, "measure.acceptance=replay", "model.draft=tiny:zero/draft")
    assert other.run_dir != first.run_dir
    assert other.summary["acceptance_rate"] != first.summary["acceptance_rate"]
    runs = load_runs(tmp_path / "results")
    assert sorted(runs["method"]) == ["ar", "sps", "sps"]
    assert runs.set_index("method")["finished_at"]["ar"] == answered


def test_a_replay_does_not_make_answers_that_it_may_not_make(tmp_path, cache, calm):
    config = tiny_config([*WORDS, "measure.acceptance=replay", "artefact.if_missing=error"], tmp_path, cache)
    with pytest.raises(ConfigError, match=r"no finished AR run at .*artefact\.if_missing=build decodes"):
        specbench.runner.run(config)
    assert not (tmp_path / "runs").exists()


def test_answers_of_other_weights_are_refused(measure, tmp_path, cache):
    words = [*WORDS, "measure.acceptance=replay"]
    measure(*words)
    config = specbench.runner.on_device(tiny_config(words, tmp_path / "results", cache))
    folder = tmp_path / "results" / "runs" / run_id(ar_config(config))
    edited_json(folder / "environment.json", target={"name": "tiny", "revision": "another"})
    with pytest.raises(ConfigError, match="these answers are of"):
        measure(*words, "model.draft=tiny:zero/draft")


def test_the_cache_of_the_draft_is_measured(measure):
    done = measure(*WORDS, "measure.acceptance=replay")
    keys_and_values, layers, heads, width, size = 2, 2, 2, 16, 4
    assert done.summary["draft_kv_bytes_per_token"] == keys_and_values * layers * heads * width * size


def test_what_cannot_be_replayed_is_refused(tmp_path, cache):
    replay = "measure.acceptance=replay"
    for words, message in (
        (["method=pld"], r"measure\.acceptance=replay: steps of method=pld cannot be replayed; legal with it: .*sps"),
        (["method=sps", "method/controller=heuristic"], "method/controller=fixed, not heuristic"),
        (["method=sps", "sampling.temperature=1.0"], r"set sampling\.temperature=0"),
        (["method=sps", "measure.baseline=none"], r"leave measure\.baseline out"),
        (["method=sps", "measure.acceptance=guess"], "decode, replay"),
    ):
        with pytest.raises(ConfigError, match=message):
            specbench.config.compose(["model=tiny", replay, *words])


def test_runs_of_before_keep_their_names(tmp_path, cache):
    """`measure.acceptance` came later: at its default a run is called what it was called before."""
    config = tiny_config(["method=sps"], tmp_path, cache)
    assert "measure.acceptance" not in specbench.config.semantic(config)
    replayed = dataclasses.replace(config, measure=dataclasses.replace(config.measure, acceptance="replay"))
    assert run_id(replayed) != run_id(config)
