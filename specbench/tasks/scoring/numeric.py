"""The final number of a worked answer, read tolerantly and compared exactly.

Rational arithmetic instead of floats: 18.00 equals 18, and 1/3 differs from 0.33. Expressions that are not plain
numbers (a boxed LaTeX term such as \\sqrt{16}) go to math-verify, without its timeouts: those use signals, which only
work in the main thread. Long terms and powers are not handed over, so that nothing can run for long.
"""

from __future__ import annotations

import re
from fractions import Fraction

_NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+"
# A minus sign belongs to the number that it touches, unless it touches something to be subtracted from as well.
_SIGN = r"(?:(?<![\w)\]%.])-)?"
_TOKEN = re.compile(rf"(?P<sign>{_SIGN})(?P<top>{_NUMBER})(?:\s?/\s?(?P<bottom>{_NUMBER}))?")
_LATEX_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*(-?[\d.,]+)\s*\}\s*\{\s*([\d.,]+)\s*\}")
_MARKED = re.compile(r"####([^A-Za-z\n]*\d[^\n]*)")  # not a heading such as "#### Step 1"
_NOISE = re.compile(r"\\[,;! ]|\{,\}|\\?\$|\*\*")  # LaTeX spacing, currency and bold marks
_MAX_DIGITS = 100  # an endless row of digits is no answer (and Python refuses to read more than 4300)
_MAX_TERM = 40  # characters of a term that math-verify may look at


def numeric_accuracy(answer: str, reference: str) -> float:
    """1.0 where the final number of `answer` equals that of `reference`, otherwise 0.0."""
    expected, given = final_number(reference), final_number(answer)
    return float(expected is not None and given == expected)


def final_number(text: str) -> Fraction | None:
    """The number after the last "####", else in the last box, else the last number of the text; None without one."""
    marked = [numbers[0] for line in _MARKED.findall(text) if (numbers := _numbers(line))]
    if marked:
        return marked[-1]
    box = _last_box(text)
    if box is not None:
        return _boxed(box)
    numbers = _numbers(text)
    return numbers[-1] if numbers else None


def _numbers(text: str) -> list[Fraction]:
    text = _LATEX_FRACTION.sub(r" \1/\2 ", text.replace("−", "-"))
    text = _NOISE.sub("", text)
    return [_value(match) for match in _TOKEN.finditer(text) if len(match[0]) <= _MAX_DIGITS]


def _value(match: re.Match[str]) -> Fraction:
    value = Fraction(match["top"].replace(",", ""))
    bottom = Fraction((match["bottom"] or "1").replace(",", ""))
    if bottom == 0:
        bottom = Fraction(1)
    return (-value if match["sign"] else value) / bottom


def _last_box(text: str) -> str | None:
    """What stands in the last \\boxed{...}, inner braces included; None without a closed one."""
    start = text.rfind("\\boxed{") + len("\\boxed{")
    depth = 1
    for end in range(start, len(text)) if "\\boxed{" in text else ():
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[start:end]
    return None


def _boxed(term: str) -> Fraction | None:
    bare = re.sub(r"\\(?:text|mathrm)\s*\{[^{}]*\}|\\%|%", "", term)
    plain = _numbers(bare)
    if len(plain) == 1 and not re.search(r"\\(?!d?t?frac|[,;! $])[a-z]+", bare):
        return plain[0]
    return _symbolic(bare) if len(bare) <= _MAX_TERM and "^" not in bare and "!" not in bare else None


def _symbolic(term: str) -> Fraction | None:
    from math_verify import parse  # late: imports sympy

    parsed = parse(f"\\boxed{{{term}}}", parsing_timeout=None)
    value = parsed[0] if parsed else None
    if value is None or not getattr(value, "is_number", False) or not value.is_rational:
        return None
    return Fraction(int(value.as_numer_denom()[0]), int(value.as_numer_denom()[1]))
