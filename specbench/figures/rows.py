"""Panels whose rows have names, first row on top, and bars that lie end to end in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.figures.style import Look, grid


def row_panels(
    titles: Sequence[str], names: Sequence[str], xlabel: str, *, room: float = 0.75, lines: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure with one panel a title and the same rows in all; `room`: inches beside the rows, `lines`: along them."""
    figure, axes = grid(len(titles), height=room + 0.17 * len(names))
    for axis, title in zip(axes, titles, strict=True):
        axis.set(title=title, xlabel=xlabel, ylim=(len(names) - 0.4, -0.6))
        axis.set_yticks(range(len(names)), names)
        axis.grid(visible=lines, axis="y")
    return figure, axes


def stack(axis: Axes, labels: Sequence[str], parts: Iterable[tuple[str, float, Look]]) -> None:
    """Draw parts (label of the row, width, look), each where the one before it in its row ends."""
    ends = dict.fromkeys(labels, 0.0)
    for label, width, look in parts:
        where = labels.index(label)
        axis.barh(where, width, left=ends[label], height=0.75, label=look.name, **look.of_bar())
        ends[label] += width
