"""The child process of `execution.py`: limits itself, runs one program, reports on the original stdout.

Started as a script by `python -I`; it imports nothing but the standard library. Layers, outermost first:
resource limits; a user and network namespace (no route to anywhere) and Landlock (no writing outside the working
folder) where the kernel grants them; an audit hook that refuses sockets, new processes and writing outside everywhere.
This contains careless code. Against hostile code use a container or a virtual machine around the whole benchmark.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import types
from collections.abc import Callable
from typing import Any

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_PR_SET_NO_NEW_PRIVS = 38
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # the same numbers on every architecture
_LANDLOCK_RULE_PATH_BENEATH = 1
_WRITES_ABI_1 = 0b1_1111_1111_0010  # write, remove and make files of any kind; reading and executing stay free
_REFER, _TRUNCATE = 1 << 13, 1 << 14  # since ABI 2 and ABI 3
_ON_A_FILE = 1 << 1 | _TRUNCATE  # of these, what a rule on a single file may allow
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_REFUSED = ("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.kill", "pty.")
_PATH_EVENTS = {  # event -> how many leading arguments are paths that it changes
    "os.remove": 1,
    "os.rename": 2,
    "os.rmdir": 1,
    "os.mkdir": 1,
    "os.link": 2,
    "os.symlink": 2,
    "os.truncate": 1,
    "os.chmod": 1,
    "os.chown": 1,
    "os.utime": 1,
    "shutil.rmtree": 1,
    "shutil.move": 2,
}


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def main() -> None:
    """Read the program and its limits from stdin, shut the process in, run it, and report the nonce on success."""
    request = json.load(sys.stdin)
    report = os.dup(1)
    os.set_inheritable(report, False)
    _silence()
    folder = os.path.realpath(os.getcwd())
    _isolate_network()
    _restrict_writes(folder)
    _limit(request["limits"])
    sys.addaudithook(_guard(folder))
    verdict = _run(request["program"])
    os.write(report, f"{request['nonce']} {verdict[:500]}".encode("utf-8", "replace"))
    os._exit(0)  # threads of the program may still run


def _silence() -> None:
    """No input, and no output that could fill a pipe or pass for a report."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    sys.stdin, sys.stdout, sys.stderr = (open(os.devnull, mode) for mode in ("r", "w", "w"))  # noqa: SIM115


def _isolate_network() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).unshare(_CLONE_NEWUSER | _CLONE_NEWNET)


def _restrict_writes(folder: str) -> None:
    """Let the kernel refuse writing outside `folder` (Landlock, Linux 5.13); elsewhere the audit hook does it alone."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        abi = libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)
        if abi < 1:
            return
        access = _WRITES_ABI_1 | (_REFER if abi >= 2 else 0) | (_TRUNCATE if abi >= 3 else 0)
        handled = ctypes.c_uint64(access)
        ruleset = libc.syscall(_LANDLOCK_CREATE, ctypes.byref(handled), ctypes.c_size_t(8), 0)
        for path, rights in ((folder, access), (os.devnull, access & _ON_A_FILE)):
            rule = _PathBeneath(rights, os.open(path, os.O_PATH))
            libc.syscall(_LANDLOCK_ADD, ruleset, _LANDLOCK_RULE_PATH_BENEATH, ctypes.byref(rule), 0)
            os.close(rule.parent_fd)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0)
        os.close(ruleset)


def _limit(limits: dict[str, Any]) -> None:
    bounds = {
        resource.RLIMIT_CPU: limits["cpu_s"],
        resource.RLIMIT_AS: limits["memory_bytes"],
        resource.RLIMIT_FSIZE: limits["file_bytes"],
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
    }
    for kind, bound in bounds.items():
        hard = resource.getrlimit(kind)[1]
        bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        with contextlib.suppress(ValueError, OSError):  # a platform that does not know this limit
            resource.setrlimit(kind, (bound, bound))
    # The default action ends the process without a report, which counts as a failure.
    signal.setitimer(signal.ITIMER_REAL, limits["wall_s"])


def _guard(folder: str) -> Callable[[str, tuple[Any, ...]], None]:
    realpath, fspath, sep = os.path.realpath, os.fspath, os.sep

    def inside(path: Any) -> bool:
        if isinstance(path, int) or path is None:
            return True
        full = realpath(os.fsdecode(fspath(path)))
        return full == folder or full.startswith(folder + sep) or full == os.devnull

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event.startswith(_REFUSED):
            raise PermissionError(f"not allowed here: {event}")
        if event == "open" and args[2] & _WRITE_FLAGS and not inside(args[0]):
            raise PermissionError(f"writing outside the working folder: {args[0]}")
        if event in _PATH_EVENTS and not all(inside(path) for path in args[: _PATH_EVENTS[event]]):
            raise PermissionError(f"changing files outside the working folder: {event}")

    return hook


def _run(program: str) -> str:
    """ "passed", or what ended the program; SystemExit is a failure like any other."""
    module = types.ModuleType("answer")  # not __main__: a demonstration under the usual guard is not the answer
    sys.modules["answer"] = module
    try:
        exec(compile(program, "<answer>", "exec"), module.__dict__)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "passed"


if __name__ == "__main__":
    main()
