"""Numbers, summaries, and the code that an answer contains."""

from __future__ import annotations

import threading
from fractions import Fraction

import pytest

from specbench.tasks.scoring.answer_code import completion_program, extract_code
from specbench.tasks.scoring.numeric import final_number, numeric_accuracy
from specbench.tasks.scoring.rouge import rouge_scores


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("He has 3 left.\n#### 18", 18),
        ("#### 18\nThat took 5 steps.", 18),
        ("#### $1,234.50", Fraction("1234.5")),
        ("#### <answer>\nNo: #### 7", 7),
        ("**#### 42**", 42),
        ("#### Step 1: add\n2+2=4\n#### Answer: it is 4", 4),
        ("We get 9.\n#### ", 9),
        ("#### \\boxed{18} of 20", 18),
        ("So the answer is $70,000.", 70000),
        ("It is 18.00 dollars", 18),
        ("It rose by 150%.", 150),
        ("The change is -5", -5),
        ("x = −12.", -12),
        ("10-5", 5),
        ("- 5 apples", 5),
        ("-$5", -5),
        ("7" * 5000, None),
        ("\\boxed{\\frac{\\sqrt{16}}{2}}", 2),
        ("between 3-4", 4),
        ("so 3/4 of it", Fraction(3, 4)),
        ("so \\frac{3}{4}", Fraction(3, 4)),
        ("\\boxed{\\dfrac{-3}{4}}", Fraction(-3, 4)),
        ("The total is \\boxed{1{,}200} after 3 weeks", 1200),
        ("\\boxed{\\$25} and 3", 25),
        ("\\boxed{12\\text{ apples}}", 12),
        ("\\boxed{\\sqrt{16}}", 4),
        ("\\boxed{2 \\cdot 9}", 18),
        ("\\boxed{9^{9^{9^{9}}}}", None),
        ("lists 1, 2, 3", 3),
        ("0.5", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("1,2", 2),
        ("5/0", 5),
        ("no number here", None),
        ("####", None),
        ("", None),
    ],
)
def test_the_final_number(text: str, number: Fraction | int | None) -> None:
    assert final_number(text) == number


def test_accuracy_compares_exactly() -> None:
    assert numeric_accuracy("#### 18.00", "work\n#### 18") == 1.0
    assert numeric_accuracy("about 0.33", "#### 1/3") == 0.0
    assert numeric_accuracy("I do not know", "no number") == 0.0


def test_boxed_terms_are_read_outside_the_main_thread_too() -> None:
    found: list[Fraction | None] = []
    thread = threading.Thread(target=lambda: found.append(final_number("\\boxed{\\sqrt{81}}")))
    thread.start()
    thread.join()
    assert found == [9]


def test_rouge_by_hand() -> None:
    scores = rouge_scores("the cat sat", "the cat ran away")
    assert scores["rouge1"] == pytest.approx(2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))
    assert scores["rouge2"] == pytest.approx(2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3))
    assert scores["rougeL"] == scores["rouge1"]
    assert rouge_scores("", "the cat") == {"rouge1": 0.0, "rouge2": 0.0, "rougeL": 0.0}


PROMPT = 'import math\n\n\ndef area(r):\n    """Area of a circle."""\n'


def result_of(code: str) -> float:
    names: dict = {}
    exec(code, names)
    return names["area"](2)


@pytest.mark.parametrize(
    "answer",
    [
        "```python\nimport math\ndef area(r):\n    return math.pi * r * r\n```",
        "```python\ndef area(r):\n    return math.pi * r * r\n```\nUse it so:\n```python\nprint(area(1))\n```",
        "```\ndef area(r):\n    return 0\n```\nBetter:\n```python\ndef area(r):\n    return math.pi * r * r\n```",
        "```python\ndef area(r):\n    return math.pi * r * r",
        "Indented:\n  ```python\n  def area(r):\n      return math.pi * r * r\n  ```",
        "def area(r):\n    return math.pi * r * r\n",
        "```python\n    return math.pi * r * r\n```",
        "```python\nsquare = r * r\nreturn math.pi * square\n```",
        "    return math.pi * r * r\n",
        "```python\nif r:\n    return math.pi * r * r\nreturn 0\n```",
    ],
)
def test_code_is_found_and_completed_by_the_prompt(answer: str) -> None:
    assert result_of(extract_code(answer, "area", PROMPT)) == pytest.approx(12.566, abs=1e-3)


def test_without_a_block_that_defines_it_the_last_block_counts() -> None:
    assert extract_code("```\nx = 1\n```\n```\nx = 2\n```", "area") == "x = 2\n"
    assert extract_code("just words", "area") == "just words"


@pytest.mark.parametrize(
    "continuation",
    [
        "    s = r * r\n    return math.pi * s\n\n\ndef other():\n    return 1 +\n",
        "s = r * r\n    return math.pi * s\nprint(area(1)",
        "\n    return math.pi * r * r\n# Example\n)",
    ],
)
def test_a_completion_ends_where_the_body_ends(continuation: str) -> None:
    assert result_of(completion_program(PROMPT, continuation)) == pytest.approx(12.566, abs=1e-3)
