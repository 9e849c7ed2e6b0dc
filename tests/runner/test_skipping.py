"""Layer choices of a run: stored as rows, summed up in its summary, and sets that do not belong to the model."""

from __future__ import annotations

import json

import pytest

from specbench.analysis.skipping import expanded
from specbench.methods.skip_sets import store_set
from specbench.results.summary import load_choices, load_runs
from specbench.types import ConfigError

SWIFT = ("method=swift", "sampling.max_new_tokens=40", "method.context_window=6", "method.max_tolerance=3")
NUMBERS = ("predicted_acceptance", "measured_acceptance", "predicted_tokens_per_second", "search_s", "sublayers")


def model_of(done) -> str:
    return json.loads((done.run_dir / "environment.json").read_text())["target"]["revision"]


def test_a_search_is_rows_and_a_summary(measure):
    done = measure(*SWIFT, "num_samples=3")
    choices = expanded(load_choices(done.run_dir), (*NUMBERS, "reason", "active"))
    assert set(choices["reason"]) >= {"initial", "better", "limit", "carried_over"}
    searched = choices[choices["search_s"].notna()]
    assert (searched["predicted_acceptance"] > 0).all()
    summary = done.summary
    assert summary["num_choices"] == len(searched)
    assert summary["skip_set"] == searched["sublayers"].iloc[-1]
    assert summary["num_attention_skipped"] + summary["num_mlp_skipped"] == len(summary["skip_set"])
    assert summary["search_share"] == pytest.approx(summary["adapt_share"])
    assert summary["search_share"] > 0
    assert summary["search_ended"] is True
    ended = searched.iloc[-1]
    assert summary["steady_num_tokens"] < summary["num_turns"] * 40
    assert ended["active"] is False
    assert summary["steady_walltime_speedup"] > 0
    assert load_runs(done.run_dir)["steady_tokens_per_second"].item() > 0


@pytest.mark.slow
def test_a_stored_set_is_used_without_a_search(measure, tmp_path):
    first = measure(*SWIFT, "num_samples=2")
    file = store_set(tmp_path / "set.json", {2, 5}, model=model_of(first), card={})
    for method in ("swift", "confl", "clasp", "knapspec"):
        done = measure(f"method={method}", f"method.skip_set={file}", "num_samples=1")
        choices = expanded(load_choices(done.run_dir), ("reason", "sublayers"))
        assert [(row["reason"], row["sublayers"]) for _, row in choices.iterrows()] == [("given", [2, 5])]
        summary = done.summary
        assert (summary["num_attention_skipped"], summary["num_mlp_skipped"]) == (1, 1)
        assert summary["num_choices"] is None
        assert done.error is None


@pytest.mark.parametrize("method", ["swift", "confl", "clasp", "knapspec"])
def test_a_set_of_another_model_is_refused_before_anything_is_written(measure, tmp_path, method):
    file = store_set(tmp_path / "set.json", {2, 5}, model="local-another", card={})
    with pytest.raises(ConfigError, match=rf"method\.skip_set={file}: made for model local-another, but this one is"):
        measure(f"method={method}", f"method.skip_set={file}")
    assert not (tmp_path / "results" / "runs").exists()
