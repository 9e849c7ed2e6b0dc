"""Small JSON files that several processes share: read whole, replaced in one step."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; {} when there is no file or when it cannot be read (it will be measured again)."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        log.warning("%s cannot be read (%s) and is made again", path, error)
        return {}
    return content if isinstance(content, dict) else {}


def write_object(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` so that a reader sees the old file or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def digest(content: Mapping[str, Any]) -> str:
    """12 hex digits that change with any value of `content`."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
