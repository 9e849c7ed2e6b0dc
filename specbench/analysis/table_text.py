"""Tables as Markdown and as LaTeX (package booktabs)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}
_NUMBER = re.compile(r"^[-+]?[\d.]")


class Cell(NamedTuple):
    """One cell; `bold` only where a table's rule allows it."""

    text: str
    bold: bool = False


EMPTY = Cell("-")


def missing(value: Any) -> bool:
    """Whether a cell of a data frame holds nothing."""
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def shown(value: Any, nothing: str = EMPTY.text) -> str:
    """A cell of a data frame as text; `nothing` where it holds nothing."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if missing(value):
        return nothing
    return f"{value:g}" if isinstance(value, float) else str(value)


def joined(texts: pd.DataFrame) -> list[str]:
    """Of each row the cells that hold a text, as one."""
    return [", ".join(filter(None, row)) for row in texts.itertuples(index=False)]


def number(value: Any, digits: int) -> Cell:
    """A number with so many decimals; `-` where it is missing."""
    return EMPTY if missing(value) else Cell(f"{float(value):.{digits}f}")


def with_interval(value: Any, low: Any, high: Any, *, form: str = ".2f", unit: str = "", noisy: bool = False) -> str:
    """`1.23 [1.10, 1.30] noisy`: a number and, where it is known, its interval; `-` where the number is missing."""
    if missing(value):
        return EMPTY.text
    interval = "" if missing(low) or missing(high) else f" [{low:{form}}, {high:{form}}]"
    return f"{value:{form}}{unit}{interval}{' noisy' if noisy else ''}"


def span(counts: Iterable[float]) -> str:
    """Counts as one number, or as the smallest and the largest; an empty text where there are none."""
    known = sorted({int(count) for count in counts})
    return " to ".join(map(str, dict.fromkeys((*known[:1], *known[-1:]))))


@dataclass(frozen=True)
class Table:
    """A finished table: `name` is its file's name, `notes` are sentences below it."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.name}: a row has {len(row)} cells for {len(self.columns)} columns")

    def _repr_markdown_(self) -> str:
        """What a notebook shows."""
        return markdown(self)


def markdown(table: Table) -> str:
    """The table with its title as a heading and its notes as a list."""
    lines = [f"# {table.title}", "", _line(table.columns), _line(["---"] * len(table.columns))]
    lines += [_line(_strong(cell) for cell in row) for row in table.rows]
    if table.notes:
        lines += ["", *(f"- {note}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def latex(table: Table) -> str:
    """A `table` environment with caption, label and booktabs rules; notes stand below in small print."""
    body = [_row(_bold(cell) for cell in row) for row in table.rows]
    notes = [rf"\par\smallskip\footnotesize {latex_escaped(note)}" for note in table.notes]
    lines = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{latex_escaped(table.title)}}}",
        rf"\label{{tab:{table.name.replace('_', '-')}}}",
        rf"\begin{{tabular}}{{{_alignment(table)}}}",
        r"\toprule",
        _row(latex_escaped(name) for name in table.columns),
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        *notes,
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def latex_escaped(text: str) -> str:
    """`text` with everything that LaTeX takes for itself written out."""
    return "".join(_LATEX.get(character, character) for character in text)


def _line(cells: Iterable[str]) -> str:
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def _strong(cell: Cell) -> str:
    return f"**{cell.text}**" if cell.bold else cell.text


def _row(cells: Iterable[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _bold(cell: Cell) -> str:
    text = latex_escaped(cell.text)
    return rf"\textbf{{{text}}}" if cell.bold else text


def numeric(table: Table, column: int) -> bool:
    """Whether the column holds numbers, apart from empty cells."""
    texts = [row[column].text for row in table.rows if row[column].text not in ("", EMPTY.text)]
    return bool(texts) and all(_NUMBER.match(text) for text in texts)


def _alignment(table: Table) -> str:
    return "".join("r" if numeric(table, column) else "l" for column in range(len(table.columns)))
