"""Names of devices and number formats, checked before anything is loaded."""

from __future__ import annotations

import torch

from specbench.types import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def available_devices() -> list[str]:
    """Device names usable here, `cpu` first."""
    return ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]


def resolve_device(name: str) -> str:
    """The torch device for `auto`, `cpu`, `cuda` or `cuda:N`; ConfigError if it is not there."""
    available = available_devices()
    if name == "auto":
        return available[1] if len(available) > 1 else "cpu"
    wanted = "cuda:0" if name == "cuda" else name
    if wanted not in available:
        raise ConfigError(f"hardware.device={name} is not there; available: auto, {', '.join(available)}")
    return wanted


def resolve_dtype(name: str, device: str) -> torch.dtype:
    """The torch dtype for `name`; ConfigError if it is unknown or if `device` (resolved) cannot multiply in it."""
    if name not in DTYPES:
        raise ConfigError(f"hardware.dtype={name} is not legal; choose one of {', '.join(DTYPES)}")
    if not _can_multiply(DTYPES[name], device):
        able = [other for other, dtype in DTYPES.items() if _can_multiply(dtype, device)]
        raise ConfigError(f"hardware.dtype={name} does not work on {device}; it can do {', '.join(able)}")
    return DTYPES[name]


def _can_multiply(dtype: torch.dtype, device: str) -> bool:
    if device.startswith("cuda") and dtype == torch.bfloat16:
        # Older GPUs emulate bfloat16 so slowly that no timing on them means anything.
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    try:
        ones = torch.ones(2, 2, dtype=dtype, device=device)
        torch.nn.functional.scaled_dot_product_attention(ones[None], ones[None], ones[None] @ ones)
    except (RuntimeError, AssertionError):  # torch asserts when it was built without CUDA
        return False
    return True
