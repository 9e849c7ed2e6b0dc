"""What is shipped: every skip set belongs to the embedded model, says where it comes from, and gets into a package."""

from __future__ import annotations

import json
import subprocess
import tomllib
from types import SimpleNamespace

import pytest

from specbench.methods.skip_search import SHIPPED, shipped_set
from specbench.methods.skip_sets import given_set

CARD = ("model_name", "method", "task", "data", "command", "git", "seed", "search", "check", "num_attention_skipped")
SETS = sorted(SHIPPED.glob("*.json"))
NUM_SUBLAYERS = 60  # of SmolLM2-135M


@pytest.mark.parametrize("file", SETS, ids=lambda file: file.stem)
def test_a_shipped_set_has_a_card_and_fits(file):
    card = json.loads(file.read_text())
    assert set(CARD) <= set(card)
    assert card["model"].startswith("gguf-")
    found = given_set(str(file), num_sublayers=NUM_SUBLAYERS, model=card["model"])
    assert 0 < len(found) < NUM_SUBLAYERS
    mlp = sum(index % 2 for index in found)
    assert (card["num_attention_skipped"], card["num_mlp_skipped"]) == (len(found) - mlp, mlp)
    assert file.stem == f"smollm2-{card['method']}-{card['task']}"
    assert 0.0 < card["check"]["acceptance_rate"] <= 1.0
    assert card["check"]["predicted_tokens_per_second"] > 0.0
    assert "/" not in card["command"].replace("scripts/", "")  # no folder of the machine that made it


def test_sets_are_shipped_for_both_searches_and_both_tasks():
    assert {file.stem for file in SETS} >= {f"smollm2-{m}-{t}" for m in ("swift", "confl") for t in ("gsm8k", "cnn_dm")}


@pytest.mark.parametrize("file", SETS, ids=lambda file: file.stem)
def test_auto_starts_with_the_set_of_its_method_and_task(file):
    card = json.loads(file.read_text())
    target = SimpleNamespace(decoder=SimpleNamespace(num_sublayers=NUM_SUBLAYERS))
    parts = SimpleNamespace(target=target, model_hash=card["model"], task=card["task"])
    assert shipped_set(card["method"], parts) == set(card["sublayers"])  # type: ignore[arg-type]
    parts.model_hash = "gguf-another"
    assert shipped_set(card["method"], parts) is None  # type: ignore[arg-type]


def test_a_wheel_would_hold_the_sets(repo_root):
    """The build backend takes whatever lies in its packages and is not ignored by git."""
    built = tomllib.loads((repo_root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert built == {"packages": ["specbench"]}
    assert SHIPPED.is_relative_to(repo_root / "specbench")
    ignored = subprocess.run(["git", "check-ignore", *map(str, SETS)], cwd=repo_root, capture_output=True, check=False)
    assert (ignored.returncode, ignored.stdout) == (1, b"")
