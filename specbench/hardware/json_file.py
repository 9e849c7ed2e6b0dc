"""Small JSON files that several processes share."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

from specbench.results.files import read_json
from specbench.types import DataError

log = logging.getLogger(__name__)


def read_if_usable(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; {} when there is none or it is damaged: what it held can be measured again."""
    if not path.exists():
        return {}
    try:
        return read_json(path)
    except DataError as error:
        log.warning("%s; it is made again", error)
        return {}


def digest(content: Any) -> str:
    """12 hex digits that change with any value of `content`."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
