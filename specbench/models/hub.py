"""Whether the models that a run needs can be had: asked before anything slow is imported or loaded."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Collection, Mapping
from pathlib import Path

from specbench.types import ModelError

HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
FILES = ["*.safetensors", "*.json", "*.jinja", "*.txt", "tokenizer*", "*.model"]
NOT_FILES = ["*/*", "consolidated*"]  # folders hold other formats of the same weights
_SECONDS = 4.0  # so long the Hub has to answer

Named = Mapping[str, tuple[str | None, str | None]]  # key of the configuration -> (source, revision)


def check_hub(named: Named, *, needed: Collection[str]) -> None:
    """Refuse within seconds where a `needed` model must be fetched and the Hub does not answer.

    `named` also has models that are not needed: the ModelError names every one that would have to be fetched. A Hub
    that answers is left to loading.
    """
    absent = {key: source for key, (source, revision) in named.items() if source and _not_here(source, revision)}
    first = next((absent[key] for key in needed if key in absent), None)
    reason = None if first is None else _no_answer(first)
    if reason is None:
        return
    models = list(dict.fromkeys(absent.values()))
    fetch = " ".join(["python scripts/prefetch.py", *(f"--model {name}" for name in models)])
    local = " ".join(f"{key}=<local folder>" for key in absent)
    raise ModelError(
        f"cannot fetch {' and '.join(models)} from the Hub ({reason}). Without a network: fetch elsewhere with "
        f"`{fetch}` and copy the Hub's cache folder here, or name local copies: {local}; a private or gated model "
        "needs HF_TOKEN"
    )


def _not_here(source: str, revision: str | None) -> bool:
    """Whether a source is a Hub id whose files are not in the Hub's cache folder."""
    path = Path(source).expanduser()
    if source.endswith(".gguf") or path.is_dir() or not HUB_ID.fullmatch(source):
        return False
    import huggingface_hub

    try:
        huggingface_hub.snapshot_download(
            source, revision=revision, allow_patterns=FILES, ignore_patterns=NOT_FILES, local_files_only=True
        )
    except Exception:  # absent and incomplete show themselves as several kinds of error
        return True
    return False


@functools.cache
def _no_answer(source: str) -> str | None:
    """Why the Hub says nothing about a model; None where it does, be it that there is no such model."""
    found = [f"no answer within {_SECONDS:g} s"]
    # In a thread: looking up a name has no time limit of its own.
    asking = threading.Thread(target=lambda: found.append(_asked(source)), daemon=True)
    asking.start()
    asking.join(_SECONDS)
    return found[-1] or None


def _asked(source: str) -> str:
    import huggingface_hub
    from huggingface_hub import errors

    try:
        huggingface_hub.HfApi().repo_info(source, timeout=_SECONDS)
    except errors.RepositoryNotFoundError:  # a gated one too
        return ""
    except Exception as error:  # no network shows itself as many kinds of error, by library and version
        return f"{type(error).__name__}: {first_line(error)}"
    return ""


def first_line(error: Exception) -> str:
    """The first line of what an error says."""
    return (str(error).strip().splitlines() or [""])[0]
