"""The driver's library, where there is one; every caller copes with None."""

from __future__ import annotations

import functools
from typing import Any

import torch


@functools.cache
def nvml() -> Any:
    """The initialised nvidia-ml-py module, or None without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # a missing module, library or driver: all mean that nothing can be asked
        return None
    return pynvml


def gpu_handle(device: str) -> Any:
    """The driver's handle of a torch device, found by UUID because CUDA_VISIBLE_DEVICES renumbers."""
    library = nvml()
    assert library is not None
    index = torch.device(device).index or 0
    identity = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    if identity is None:
        return library.nvmlDeviceGetHandleByIndex(index)
    return library.nvmlDeviceGetHandleByUUID(f"GPU-{identity}")
