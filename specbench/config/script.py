"""How every script ends: an exit code, and one line for what a user can act on."""

from __future__ import annotations

import sys
from collections.abc import Callable

from specbench.config.command import INTERRUPTED, USER_ERROR
from specbench.types import SpecbenchError

KEPT = "everything finished so far is kept; the same command continues it"


def exit_code(work: Callable[[], int | None], *, interrupted: str = KEPT) -> int:
    """What `work` gives (None is 0); 2 and one line for a user's mistake or a file; 130 and one line for Ctrl-C.

    `interrupted` says what is left of the work.
    """
    try:
        return work() or 0
    except KeyboardInterrupt:
        sys.stderr.write(f"interrupted: {interrupted}\n")
        return INTERRUPTED
    except SpecbenchError as error:
        sys.stderr.write(f"error: {error}\n")
    except OSError as error:  # scripts read and write where they are told to
        sys.stderr.write(f"error: cannot read or write: {error}\n")
    return USER_ERROR
