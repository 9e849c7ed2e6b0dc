"""What a check found, and comparisons that say where two values differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"

Data = Mapping[str, Any]


class Outcome(NamedTuple):
    """One checked case; `detail` says what differs or why it was skipped."""

    case: str
    status: str
    detail: str = ""


# (root of the golden folder, content of one file) -> outcomes of its cases
Checker = Callable[[Path, Data], Iterable[Outcome]]


def judge(case: str, compare: Callable[..., Iterable[str]], *arguments: Any) -> Outcome:
    """Passed when `compare(*arguments)` yields no difference; an exception is a failure of this case only."""
    try:
        differences = list(compare(*arguments))
    except Exception as error:  # whatever is wrong with one case, the others are still checked
        return Outcome(case, FAILED, f"{type(error).__name__}: {error}")
    if not differences:
        return Outcome(case, PASSED)
    more = f" (and {len(differences) - 3} more)" if len(differences) > 3 else ""
    return Outcome(case, FAILED, "; ".join(differences[:3]) + more)


def equal(what: str, ours: Any, golden: Any) -> Iterator[str]:
    """A difference unless the values are equal; for sequences it names the first differing place."""
    if isinstance(ours, Sequence) and isinstance(golden, Sequence) and not isinstance(golden, str):
        ours, golden = list(ours), list(golden)
        place = next((i for i, (a, b) in enumerate(zip(ours, golden, strict=False)) if a != b), None)
        if place is not None:
            yield f"{what}[{place}] is {ours[place]!r}, golden {golden[place]!r}"
        elif len(ours) != len(golden):
            yield f"{what} has length {len(ours)}, golden {len(golden)}"
    elif ours != golden:
        yield f"{what} is {ours!r}, golden {golden!r}"


def close(what: str, ours: Any, golden: Any, *, absolute: float = 0.0, relative: float = 0.0) -> Iterator[str]:
    """Differences beyond a tolerance, elementwise for nested lists; null equals only null."""
    if isinstance(golden, Sequence):
        if len(ours) != len(golden):
            yield f"{what} has length {len(ours)}, golden {len(golden)}"
            return
        for place, (a, b) in enumerate(zip(ours, golden, strict=True)):
            yield from close(f"{what}[{place}]", a, b, absolute=absolute, relative=relative)
    elif ours is None or golden is None:
        yield from equal(what, ours, golden)
    elif not math.isclose(ours, golden, rel_tol=relative, abs_tol=absolute):
        yield f"{what} is {ours!r}, golden {golden!r}"
