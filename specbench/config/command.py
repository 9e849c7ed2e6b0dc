"""The command around Hydra: one line for a user's mistake, a closing table for a sweep, and an exit code."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from specbench.config import jobs
from specbench.config.errors import key_of, one_line
from specbench.config.help import help_text
from specbench.config.sweeps import compose_each, sweep_jobs
from specbench.config.swept import check_swept
from specbench.config.words import spelled
from specbench.types import ConfigError, SpecbenchError

INTERRUPTED = 130
USER_ERROR = 2
_SWEEPS = ("-m", "--multirun")


def command(main: Callable[[], object]) -> int:
    """Run a `hydra.main` function and give the exit code.

    0: all done; 1: something failed; 2: a user's mistake; 130: Ctrl-C. HYDRA_FULL_ERROR=1 keeps tracebacks.
    """
    if {"-h", "--help"} & set(sys.argv[1:]):  # Hydra's own help takes seconds to list the groups
        sys.stdout.write(help_text())
        return 0
    sys.argv[1:] = spelled(sys.argv[1:])
    full_error = os.environ.get("HYDRA_FULL_ERROR") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra hands errors over instead of printing them
    logging.raiseExceptions = False  # a log file on a full disk must not drown what is told about it
    code = 0
    try:
        check_swept(sys.argv[1:])
        main()
    except KeyboardInterrupt:
        code = INTERRUPTED
        _tell("interrupted: everything measured so far is kept; the same command continues it")
    except (HydraException, OmegaConfBaseException, SpecbenchError) as error:
        if full_error:
            raise
        code = USER_ERROR
        _tell(f"ERROR: {_explained(error, sys.argv[1:])}")
    except OSError as error:  # Hydra's and our own small files beside the runs
        if full_error:
            raise
        code = USER_ERROR
        _tell(f"ERROR: cannot write below paths.results_dir ({error}); make room there or choose another folder")
    jobs_code, table = jobs.finish()
    if table:
        sys.stdout.write(f"\n{table}\n")
    return code or jobs_code


def _explained(error: BaseException, words: Sequence[str]) -> str:
    """The line for an error; of a sweep in which some choices have a key and others lack it, for a job that does."""
    if key_of(error) is not None and any(word in _SWEEPS or word.startswith("experiment=") for word in words):
        try:
            for job in sweep_jobs([word for word in words if "=" in word and not word.startswith("-")]):
                (found,) = compose_each([job])
                if isinstance(found, ConfigError):
                    return str(found)
        except ConfigError as first:
            return str(first)
    return one_line(error, words)


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
