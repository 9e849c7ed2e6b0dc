"""The description of the machine can be stored whatever is missing."""

import json
import subprocess

import psutil
import pytest
import torch

from specbench.hardware import environment as module
from specbench.hardware.environment import environment, git_state


def test_it_is_json_and_names_the_software():
    described = json.loads(json.dumps(environment("cpu")))
    assert described["versions"]["torch"] == torch.__version__
    assert described["cpu"]["logical_cores"] >= 1
    assert described["gpu"] is None


def test_a_variable_that_changes_timing_is_in_it(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert environment("cpu")["variables"]["OMP_NUM_THREADS"] == "3"


def test_nothing_that_is_missing_stops_it(monkeypatch):
    def missing(*args, **kwargs):
        raise RuntimeError("not here")

    monkeypatch.setattr(module, "_cpuinfo", dict)
    monkeypatch.setattr(psutil, "virtual_memory", missing)
    monkeypatch.setattr(psutil, "cpu_count", missing)
    monkeypatch.setattr(torch.cuda, "get_device_properties", missing)
    monkeypatch.setenv("PATH", "")
    described = environment("cuda:0")
    json.dumps(described)
    assert described["gpu"] is described["git"] is described["memory_bytes"] is None
    assert described["cpu"]["flags"] is None


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "specbench").mkdir()
    (tmp_path / "specbench" / "a.py").write_text("1")
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True, capture_output=True)
    return tmp_path


def test_a_clean_and_a_changed_checkout(checkout):
    clean = git_state(checkout / "specbench")
    assert clean is not None
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (checkout / "specbench" / "a.py").write_text("2")
    assert git_state(checkout / "specbench") == {"commit": clean["commit"], "dirty": True}


def test_another_projects_checkout_is_not_ours(checkout):
    installed = checkout / "venv" / "specbench"
    installed.mkdir(parents=True)
    assert git_state(installed) is None
