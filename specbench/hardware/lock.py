"""One timed sample at a time on a device, across all processes of the machine."""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import filelock

log = logging.getLogger(__name__)

FOLDER_VARIABLE = "SPECBENCH_LOCK_DIR"

# One lock object per file: a filelock counts its holders within a process, which makes `exclusive` reentrant.
_locks: dict[Path, filelock.FileLock] = {}


def lock_folder() -> Path:
    """The machine-wide folder of lock files: $SPECBENCH_LOCK_DIR, else one under /tmp that every user may write."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    # Not gettempdir() first: batch systems give each job its own TMPDIR, and then nobody would wait for anybody.
    shared = Path("/tmp")
    base = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    folder = Path(chosen) if chosen else base / "specbench-locks"
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(PermissionError):
            # No sticky bit: Linux refuses to open another user's file for creation in a sticky folder.
            folder.chmod(0o777)
    return folder


def device_key(device: str) -> str:
    """A name of the physical device, equal in every process whatever CUDA_VISIBLE_DEVICES says."""
    if not device.startswith("cuda"):
        return device
    import torch  # only here: taking a CPU lock needs no torch

    index = torch.device(device).index or 0
    identity = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return f"gpu-{identity}" if identity else f"cuda-{index}"


@contextmanager
def exclusive(device: str, *, enabled: bool = True) -> Iterator[None]:
    """Hold `device` alone for the body; waits for other holders, may be nested, and a dead holder does not block."""
    if not enabled:
        yield
        return
    lock = _lock(device)
    _acquire(lock, device)
    try:
        yield
    finally:
        lock.release()


def _lock(device: str) -> filelock.FileLock:
    path = lock_folder() / (re.sub(r"[^\w.-]", "-", device_key(device)) + ".lock")
    if path not in _locks:
        _locks[path] = filelock.FileLock(path, mode=0o666)
    return _locks[path]


def _acquire(lock: filelock.FileLock, device: str) -> None:
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        log.info("waiting for another timed run on %s (lock %s)", device, lock.lock_file)
        lock.acquire()
