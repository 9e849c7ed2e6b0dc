"""run_id: the same for the same measurement, another one for anything that could change a number."""

from __future__ import annotations

import re

import pytest

from specbench.config import NOT_SEMANTIC, compose, flatten, run_id, semantic
from specbench.config.identity import as_dict


def test_it_is_readable_and_legal_for_trackers():
    text = run_id(compose(["method=pld_official", "task=gsm8k"]))
    assert re.fullmatch(r"smollm2-pld_official-gsm8k-[0-9a-f]{8}", text)
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", run_id(compose(["model.name='a/b:c #1'"])))


@pytest.mark.parametrize(
    "word",
    [
        "seed=1",
        "num_samples=9",
        "hardware.dtype=float32",
        "hardware.device=cpu",
        "method.max_ngram=4",
        "method.scope=run",
        "model.target=other",
        "model.template_date='1 Jan 2025'",
        "sampling.temperature=0.5",
        "sampling.max_new_tokens=9",
        "task.style=completion",
        "data=hub",
        "measure.baseline=none",
        "measure.warmup=2",
    ],
)
def test_semantic_keys_change_it(word):
    assert run_id(compose([word])) != run_id(compose())


@pytest.mark.parametrize(
    "word",
    [
        "logger=wandb",
        "paths.results_dir=elsewhere",
        "dry_run=true",
        "hardware.num_threads=2",
        "model.display_name=Other",
        "objective=mat",
        "size=smoke",
        "artefact.if_missing=error",
        "data=embedded",  # what auto stands for
        "sampling.max_new_tokens=128",  # what null stands for
        "measure.tie_gap=0.5",
    ],
)
def test_other_keys_do_not(word):
    assert run_id(compose([word])) == run_id(compose())


def test_the_controller_is_part_of_it():
    words = ["model=tiny", "method=sps"]
    assert run_id(compose(words)) != run_id(compose([*words, "method/controller=heuristic"]))


def test_the_number_of_a_device_does_not_matter_and_a_data_folder_counts_as_absolute_path(monkeypatch, tmp_path):
    assert run_id(compose(["hardware.device=cuda:1"])) == run_id(compose(["hardware.device=cuda"]))
    monkeypatch.chdir(tmp_path)
    local = ["data=local"]
    assert run_id(compose([*local, "data.dir=x"])) == run_id(compose([*local, f"data.dir={tmp_path}/x"]))
    assert run_id(compose([*local, "data.dir=x"])) != run_id(compose([*local, "data.dir=y"]))


def test_every_exclusion_names_a_real_key_and_everything_else_counts():
    flat = flatten(as_dict(compose()))
    for entry in NOT_SEMANTIC:
        assert any(key == entry or key.startswith(f"{entry}.") for key in flat), entry
    dropped = set(flat) - set(semantic(compose()))
    assert all(any(key == e or key.startswith(f"{e}.") for e in NOT_SEMANTIC) for key in dropped)
