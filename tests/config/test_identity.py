"""run_id: the same for the same measurement, another one for anything that could change a number."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from specbench.config import NOT_SEMANTIC, as_dict, compose, flatten, is_known, run_id, semantic
from specbench.config.controllers import FixedConfig
from specbench.config.identity import LATER


@pytest.fixture(scope="module")
def base():
    return compose()


def changed(config, key, value):
    """The config with one dotted key set, as if it had been composed so."""
    name, _, rest = key.partition(".")
    return replace(config, **{name: changed(getattr(config, name), rest, value) if rest else value})


def test_a_run_may_be_known_before_its_device_is(base, tmp_path):
    """The id of the folder is that of the resolved device; the names before it are enough to look further."""
    config = changed(base, "paths.results_dir", str(tmp_path))
    assert not is_known(config)
    (tmp_path / "runs" / run_id(changed(config, "method.name", "other"))).mkdir(parents=True)
    assert not is_known(config)
    (tmp_path / "runs" / run_id(changed(config, "hardware.device", "cuda:1"))).mkdir()
    assert is_known(config)


def test_it_is_readable_and_legal_for_trackers(base):
    assert re.fullmatch(r"smollm2-pld-humaneval-[0-9a-f]{8}", run_id(base))
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", run_id(changed(base, "model.name", "a/b:c #1")))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", 1),
        ("num_samples", 9),
        ("num_samples", None),
        ("hardware.dtype", "float32"),
        ("hardware.device", "cpu"),
        ("method.max_ngram", 4),
        ("method.scope", "run"),
        ("method._target_", "elsewhere"),
        ("model.target", "other"),
        ("model.template_date", "1 Jan 2025"),
        ("sampling.temperature", 0.5),
        ("sampling.max_new_tokens", 9),
        ("task.style", "completion"),
        ("data.source", "hub"),
        ("measure.baseline", "none"),
        ("measure.warmup", 2),
        ("hardware.num_threads", 2),
    ],
)
def test_semantic_keys_change_it(base, key, value):
    assert run_id(changed(base, key, value)) != run_id(base)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("logger.name", "wandb"),
        ("paths.results_dir", "elsewhere"),
        ("dry_run", True),
        ("measure.retry_failed", True),
        ("model.display_name", "Other"),
        ("objective", "mat"),
        ("size", "smoke"),
        ("experiment_name", "headline"),
        ("artefact.if_missing", "error"),
    ],
)
def test_other_keys_do_not(base, key, value):
    assert run_id(changed(base, key, value)) == run_id(base)


def test_writing_out_a_default_changes_nothing(base):
    words = ["data=embedded", "sampling.max_new_tokens=64", "measure.tie_gap=0.5"]
    assert run_id(compose(words)) == run_id(base)


def test_the_controller_is_part_of_it():
    four, five = (FixedConfig(name="fixed", num_draft_tokens=number) for number in (4, 5))
    config = compose(["model=tiny", "method=sps"])
    assert config.method.controller == replace(five, _target_=config.method.controller._target_)
    assert run_id(changed(config, "method.controller", four)) != run_id(changed(config, "method.controller", five))


def test_the_number_of_a_device_does_not_matter(base):
    assert run_id(changed(base, "hardware.device", "cuda:1")) == run_id(changed(base, "hardware.device", "cuda"))


def test_a_data_folder_counts_as_absolute_path(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    one, same, other = (compose(["data=local", f"data.dir={folder}"]) for folder in ("x", tmp_path / "x", "y"))
    assert run_id(one) == run_id(same) != run_id(other)


def test_every_exclusion_names_a_real_key_and_everything_else_counts(base):
    flat = flatten(as_dict(base))
    for entry in NOT_SEMANTIC:
        assert any(key == entry or key.startswith(f"{entry}.") for key in flat), entry
    dropped = set(flat) - set(semantic(base)) - set(LATER)
    assert all(any(key == e or key.startswith(f"{e}.") for e in NOT_SEMANTIC) for key in dropped)
