"""A figure of the catalogue in a notebook: the picture, or in one sentence what it lacks."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO

import matplotlib as mpl
from matplotlib.figure import Figure

from specbench.figures.base import NotEnoughData
from specbench.figures.catalogue import Part, draw
from specbench.figures.style import settings
from specbench.results.frozen import Frozen


@dataclass(frozen=True)
class Shown:
    """What a notebook shows at the end of a cell; `figure` is None where there was too little data."""

    figure: Figure | None
    reason: str = ""

    def _repr_png_(self) -> bytes | None:
        return None if self.figure is None else png(self.figure)

    def _repr_markdown_(self) -> str | None:
        return f"*Not drawn: {self.reason}*" if self.figure is None else None

    def __repr__(self) -> str:
        return self.reason or "a figure"


def show(frozen: Frozen, module: str, *experiments: str) -> Shown:
    """Draw the figure `module` from the runs of `experiments`, or from all where none of them was run."""
    part = frozen.of(*experiments) if experiments else frozen
    chosen = part if len(part.runs) else frozen
    try:
        return Shown(draw(Part(module, module, chosen)).figure)
    except NotEnoughData as missing:
        return Shown(None, str(missing))


def png(figure: Figure) -> bytes:
    """The figure as a PNG in the shared style; equal figures give equal bytes."""
    buffer = BytesIO()
    with mpl.rc_context(settings()):
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
