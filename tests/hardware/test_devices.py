"""A device or number format that is not there is one clear error."""

import pytest
import torch

from specbench.hardware import devices
from specbench.hardware.devices import resolve_device, resolve_dtype
from specbench.types import ConfigError


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.mark.parametrize(
    ("name", "expected"), [("auto", "cuda:0"), ("cuda", "cuda:0"), ("cuda:1", "cuda:1"), ("cpu", "cpu")]
)
def test_names_on_a_machine_with_gpus(two_gpus, name, expected):
    assert resolve_device(name) == expected


def test_auto_without_a_gpu_is_the_cpu(no_gpu):
    assert resolve_device("auto") == "cpu"


def test_a_missing_device_names_the_key_and_what_there_is(two_gpus):
    with pytest.raises(ConfigError, match=r"hardware\.device=cuda:7 .*cpu, cuda:0, cuda:1"):
        resolve_device("cuda:7")


def test_cuda_without_a_gpu_is_refused(no_gpu):
    with pytest.raises(ConfigError, match=r"hardware\.device=cuda "):
        resolve_device("cuda")


@pytest.mark.parametrize(("name", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_formats_of_a_cpu(name, dtype):
    assert resolve_dtype(name, "cpu") == dtype


def test_an_unknown_format_lists_the_legal_ones():
    with pytest.raises(ConfigError, match=r"hardware\.dtype=fp8 .*float32, bfloat16, float16"):
        resolve_dtype("fp8", "cpu")


def test_a_format_the_device_cannot_do_names_those_it_can(monkeypatch):
    monkeypatch.setattr(devices, "_can_multiply", lambda dtype, device: dtype == torch.float32)
    with pytest.raises(ConfigError, match=r"hardware\.dtype=bfloat16 does not work on cpu; it can do float32$"):
        resolve_dtype("bfloat16", "cpu")


def test_a_gpu_that_only_emulates_bfloat16_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    with pytest.raises(ConfigError, match=r"hardware\.dtype=bfloat16"):
        resolve_dtype("bfloat16", "cuda:0")
