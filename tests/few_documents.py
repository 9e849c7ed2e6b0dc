"""A few texts in the place of the standard library's documentation, which takes seconds to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

import pytest

PASSAGES = [f"Passage number {i} tells of {i} things that nobody has counted before." for i in range(30)]
STUBS = [f'def f{i}(a, b):\n    """Add {i} to the two numbers a and b and give the sum."""' for i in range(20)]


@contextmanager
def few_documents(reader: ModuleType, texts: Sequence[str] = PASSAGES, functions: Sequence[str] = ()) -> Iterator[None]:
    """`reader`, a module that imports both from training.documents, finds these; reading is tested on its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "documentation", lambda: texts)
        patch.setattr(reader, "functions", lambda: functions)
        yield
