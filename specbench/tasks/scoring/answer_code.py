"""From a model's answer to a program: find the code, and complete it with the prompt where that is needed."""

from __future__ import annotations

import re
import textwrap

# A block that was cut by the token budget has no closing fence and ends with the answer.
_FENCED = re.compile(r"^[ \t]*```[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.MULTILINE | re.DOTALL)


def extract_code(answer: str, entry_point: str, prompt: str = "") -> str:
    """The last fenced block that defines `entry_point`, else the last block, else the whole answer.

    With a `prompt` (a function without its body), code that defines the function gets what stands before it in the
    prompt (imports and other functions), and code that lacks it is taken as the body.
    """
    blocks = [textwrap.dedent(block) for block in _FENCED.findall(answer)]
    defining = [block for block in blocks if _defines(block, entry_point)]
    code = (defining or blocks or [answer])[-1]
    if _defines(code, entry_point):
        start = _definition(entry_point).search(prompt)
        return f"{prompt[: start.start()]}\n{code}" if start else code
    return completion_program(prompt, code) if prompt else code


def completion_program(prompt: str, continuation: str) -> str:
    """The prompt continued by the answer, which ends at its first line that leaves the function's body."""
    lines = _indented(continuation).splitlines()
    outside = (i for i, line in enumerate(lines) if line[:1].strip())
    return prompt + "\n".join(lines[: next(outside, len(lines))]) + "\n"


def _indented(body: str) -> str:
    """The body with the indentation of a function, which an answer or a detokeniser may have lost."""
    body = body.strip("\n")
    first, _, rest = body.partition("\n")
    if first[:1].isspace():
        return body
    # Only the first line lost its blanks when the second has some and the first opens no block.
    lost_at_start = rest[:1].isspace() and not first.rstrip().endswith((":", "(", "[", "{", ",", "\\"))
    return f"    {first}\n{rest}" if lost_at_start else textwrap.indent(body, "    ")


def _defines(code: str, name: str) -> bool:
    return _definition(name).search(code) is not None


def _definition(name: str) -> re.Pattern[str]:
    return re.compile(rf"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+{re.escape(name)}\b", re.MULTILINE)
