"""The device lock excludes other processes, nests within one, and dies with its owner."""

import logging
import os
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest

from specbench.hardware import lock
from specbench.hardware.lock import exclusive, lock_folder

HOLD = """
import sys, time
from specbench.hardware.lock import exclusive
with exclusive("cpu"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(lock.FOLDER_VARIABLE, str(tmp_path / "locks"))
    return tmp_path / "locks"


@pytest.fixture
def other_process():
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def wait_until_waiting(caplog) -> None:
    deadline = time.monotonic() + 10
    while "waiting for another" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_dead_owner_frees_the_device_and_waiting_is_logged_once(other_process, caplog):
    caplog.set_level(logging.INFO)
    entered = threading.Event()

    def take() -> None:
        with exclusive("cpu"):
            entered.set()

    thread = threading.Thread(target=take)
    thread.start()
    wait_until_waiting(caplog)
    assert not entered.is_set()
    os.kill(other_process.pid, signal.SIGKILL)
    thread.join(timeout=10)
    assert entered.is_set()
    assert caplog.text.count("waiting for another") == 1


def test_it_nests_and_is_free_afterwards(folder):
    with exclusive("cpu"), exclusive("cpu"):
        pass
    script = "from specbench.hardware.lock import exclusive\nwith exclusive('cpu'): print('free')"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout == "free\n"


def test_the_inner_exit_does_not_free_the_device():
    script = (
        "import sys, filelock\nfrom specbench.hardware.lock import lock_folder\n"
        "try:\n    filelock.FileLock(lock_folder() / 'cpu.lock').acquire(timeout=0)\n    print('free')\n"
        "except filelock.Timeout: print('taken')"
    )
    with exclusive("cpu"):
        with exclusive("cpu"):
            pass
        answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout == "taken\n"


def test_disabled_takes_no_lock(other_process):
    with exclusive("cpu", enabled=False):
        pass


def test_devices_do_not_exclude_each_other(other_process, monkeypatch):
    monkeypatch.setattr(lock, "device_key", lambda device: "gpu-of-its-own")
    with exclusive("cuda:0"):
        pass


def test_every_user_may_take_the_lock(folder):
    with exclusive("cpu"):
        assert stat.S_IMODE(lock_folder().stat().st_mode) == 0o777
        assert stat.S_IMODE((folder / "cpu.lock").stat().st_mode) == 0o666
