"""Words of a command line: other spellings of keys, and what of them can be written into a card."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

# Models are one word here; who knows them as a path with a revision may say so.
_SPELLINGS = {
    "model.target.path": "model.target",
    "model.draft.path": "model.draft",
    "model.target.revision": "model.target_revision",
    "model.draft.revision": "model.draft_revision",
}
_PATH = re.compile(r"(?P<key>[^=]*=)?(?P<path>[~./].*)")


def spelled(words: Sequence[str]) -> list[str]:
    """The words with keys as the configuration spells them."""
    parts = [word.partition("=") for word in words]
    return [f"{_SPELLINGS.get(key, key)}{equals}{value}" for key, equals, value in parts]


def portable(command: Sequence[str]) -> str:
    """A command for a card: what is a path of this machine becomes FOLDER or FILE; `scripts/...` stays."""
    return shlex.join([_without_path(word) for word in command])


def _without_path(word: str) -> str:
    found = _PATH.fullmatch(word)
    if found is None:
        return word
    return (found["key"] or "") + ("FILE" if Path(found["path"]).suffix else "FOLDER")
