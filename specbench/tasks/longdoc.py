"""Long prompts made from the Python standard library's own sources: summarisation and code editing.

No download and no licence question; the texts depend on the Python version, which every sample records.
"""

from __future__ import annotations

import platform
import re
import sysconfig
from pathlib import Path

from specbench.tasks.base import SampleTask, TaskOptions, no_score
from specbench.types import DataError, Sample

# Characters of Python source a token, by which prompts are cut; SmolLM2's vocabulary has 3.2 to 4.6 on these modules.
CHARS_PER_TOKEN = 3.7
# Pure Python, in one file, and present in every version from 3.11 on.
MODULES = (
    "argparse.py",
    "configparser.py",
    "subprocess.py",
    "statistics.py",
    "tarfile.py",
    "ipaddress.py",
    "random.py",
    "shutil.py",
    "difflib.py",
    "enum.py",
    "threading.py",
    "traceback.py",
    "smtplib.py",
    "optparse.py",
    "heapq.py",
    "fractions.py",
)
_SUMMARISE = (
    "Here is an excerpt of a Python source file. Explain what it provides and how its main parts work together."
)
_EDIT = (
    "Here is an excerpt of a Python source file. Rename `{old}` to `{new}` everywhere. Repeat all of the code from its "
    "first line in one fenced python code block, and change nothing else."
)


def build(options: TaskOptions) -> SampleTask:
    """Eight samples to summarise, then eight to edit, each about `task.context_tokens` tokens long; no score."""
    options.only_chat("longdoc")
    budget = round(options.context_tokens * CHARS_PER_TOKEN)
    half = len(MODULES) // 2
    items = tuple(_summarisation(index, budget) for index in range(half))
    items += tuple(_editing(index, budget) for index in range(half, len(MODULES)))
    return SampleTask("longdoc", 256, (), items, no_score, options.history)


def _summarisation(index: int, budget: int) -> Sample:
    code = _excerpt(_source(index, budget), budget - len(_SUMMARISE))
    return _sample(index, "summarisation", f"{_SUMMARISE}\n\n```python\n{code}\n```")


def _editing(index: int, budget: int) -> Sample:
    source = _source(index, budget)
    start = re.search(r"^(class|def) ", source, re.MULTILINE)
    code = _excerpt(source[start.start() if start else 0 :], budget - len(_EDIT))
    name = re.search(r"^\s*(?:class|def) (\w+)", code, re.MULTILINE)
    if name is None:
        raise DataError(f"longdoc: {MODULES[index]} of Python {platform.python_version()} defines nothing to rename")
    old = name.group(1)
    new = f"renamed_{old}"
    prompt = f"{_EDIT.format(old=old, new=new)}\n\n```python\n{code}\n```"
    return _sample(index, "code_editing", prompt, re.sub(rf"\b{old}\b", new, code))


def _sample(index: int, category: str, prompt: str, reference: str | None = None) -> Sample:
    stem = MODULES[index].removesuffix(".py")
    return Sample(
        id=f"longdoc/{category}/{stem}",
        turns=(prompt,),
        category=category,
        reference=reference,
        metadata={"module": stem, "python": platform.python_version()},
    )


def _source(index: int, budget: int) -> str:
    """The module's source, followed by the next modules' until it is long enough for any cut."""
    text = ""
    while len(text) < 3 * budget:  # code editing starts at the first definition, not at the first line
        text += _read(MODULES[index % len(MODULES)])
        index += 1
    return text


def _read(module: str) -> str:
    path = Path(sysconfig.get_paths()["stdlib"]) / module
    try:
        return path.read_text(encoding="utf-8").expandtabs()
    except OSError as error:
        raise DataError(f"longdoc needs the sources of the Python standard library: {path} ({error})") from error


def _excerpt(text: str, num_chars: int) -> str:
    """The first lines of a text, whole lines only, at most `num_chars` characters."""
    return text[:num_chars].rpartition("\n")[0].rstrip()
