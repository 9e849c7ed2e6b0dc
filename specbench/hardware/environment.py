"""Everything about the machine and the software that a measured number depends on."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch

import specbench
from specbench.hardware.monitor import load_average
from specbench.hardware.nvidia import gpu_handle, nvml

PACKAGES = (
    "specbench",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "datasets",
    "hydra-core",
)
CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_tile", "asimd", "bf16", "sve")
VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "KMP_AFFINITY",
    "GOMP_CPU_AFFINITY",
    "MALLOC_ARENA_MAX",
    "LD_PRELOAD",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "NVIDIA_TF32_OVERRIDE",
)


def environment(device: str) -> dict[str, Any]:
    """A JSON-able description of software, CPU, memory and GPU; what cannot be found out is null."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12],
        "container": _attempt(_container),
        "versions": {name: _version(name) for name in PACKAGES},
        "git": git_state(Path(specbench.__file__).resolve().parent),
        "cpu": _cpu(),
        "memory_bytes": _attempt(lambda: psutil.virtual_memory().total),
        "load_average": load_average(),
        "threads": _threads(),
        "device": device,
        "gpu": _attempt(lambda: _gpu(device)) if device.startswith("cuda") else None,
        "variables": {name: os.environ.get(name) for name in VARIABLES},
    }


def cpu_model() -> str | None:
    """The CPU's name as its vendor writes it; None when the system does not say."""
    return _cpuinfo().get("model name") or platform.processor() or None


def git_state(package: Path) -> dict[str, Any] | None:
    """Commit and dirty flag of the checkout whose `specbench` folder is `package`; None when it is no checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        # A package installed into some other project's checkout must not report that project's commit.
        if Path(git("rev-parse", "--show-toplevel")).resolve() != package.parent:
            return None
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _attempt(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception:  # a description must never stop a run, whatever a driver or a sandbox answers
        return None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return specbench.__version__ if name == "specbench" else None


def _cpuinfo() -> dict[str, str]:
    """The first processor's block of /proc/cpuinfo; {} elsewhere."""
    try:
        block = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in block.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def _cpu() -> dict[str, Any]:
    info = _cpuinfo()
    flags = set((info.get("flags") or info.get("Features") or "").split())
    return {
        "model": cpu_model(),
        "architecture": platform.machine(),
        "physical_cores": _attempt(lambda: psutil.cpu_count(logical=False)),
        "logical_cores": os.cpu_count(),
        "usable_cores": _attempt(lambda: len(os.sched_getaffinity(0))),
        "max_mhz": _attempt(lambda: psutil.cpu_freq().max or None),
        "flags": {name: name in flags for name in CPU_FLAGS} if flags else None,
    }


def _threads() -> dict[str, Any]:
    return {
        "intra_op": torch.get_num_threads(),
        "inter_op": torch.get_num_interop_threads(),
        "blas": [name for name in ("mkl", "mkldnn", "openmp") if _attempt(getattr(torch.backends, name).is_available)],
        "cpu_capability": _attempt(torch.backends.cpu.get_cpu_capability),
    }


def _container() -> str | None:
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    return os.environ.get("container") or None  # noqa: SIM112 (systemd spells it so)


def _gpu(device: str) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device)
    described = {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
    }
    return described | (_attempt(lambda: _driver(device)) or {})


def _driver(device: str) -> dict[str, Any]:
    library = nvml()
    assert library is not None
    handle = gpu_handle(device)
    ask = {
        "driver": lambda: str(library.nvmlSystemGetDriverVersion()),
        "sm_mhz": lambda: library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_SM),
        "max_sm_mhz": lambda: library.nvmlDeviceGetMaxClockInfo(handle, library.NVML_CLOCK_SM),
        "memory_mhz": lambda: library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_MEM),
        "power_limit_w": lambda: library.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
        "temperature_c": lambda: library.nvmlDeviceGetTemperature(handle, library.NVML_TEMPERATURE_GPU),
    }
    return {name: _attempt(question) for name, question in ask.items()}
