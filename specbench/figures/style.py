"""How figures look: one colour, marker, line style and hatch a method everywhere, and sizes of venues.

Colours are Okabe and Ito's and Tol's muted set, both made for colour-blind readers; markers, line styles and hatches
say the same once more for a print in grey.
"""

from __future__ import annotations

import contextvars
import functools
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from specbench.analysis.speed import NOISY

Dash = str | tuple[int, tuple[float, ...]]
Fill = Literal["full", "left", "none"]


@dataclass(frozen=True)
class Look:
    """How one thing is drawn wherever it appears."""

    name: str
    color: str | tuple[float, float, float]
    marker: str
    line: Dash = "-"
    hatch: str = ""
    fill: Fill = "full"  # of the marker; published variants of a method are hollow or half full

    def of_line(self) -> dict[str, Any]:
        """Keywords of Axes.plot."""
        return {**self.of_point(), "linestyle": self.line}

    def of_point(self) -> dict[str, Any]:
        """Keywords of points without a line."""
        return {"color": self.color, "marker": self.marker, "fillstyle": self.fill, "linestyle": "none"}

    def of_bar(self) -> dict[str, Any]:
        """Keywords of Axes.bar and barh."""
        return {"facecolor": self.color, "hatch": self.hatch, "edgecolor": INK, "linewidth": 0.5}


INK = "#222222"
FAINT = "#BBBBBB"
_REMARK = "#555555"
NOISY_MARK = "~"
NOISY_REMARK = f"{NOISY_MARK} noisy: the speedup and the median over conversations differ by more than {NOISY:.0%}"
_NUMBERS = re.compile(r"(\d+(?:\.\d+)?)")
_HANDLE = 2.6  # length of a legend's line, in units of its size
_DOTS: Dash = (0, (1, 1.2))
_LONG: Dash = (0, (6, 1.5))
_DASH_DOTS: Dash = (0, (4, 1, 1, 1, 1, 1))

METHODS = {
    "ar": Look("AR", "#000000", "x", "-"),
    "hf_ar": Look("AR (transformers)", "#555555", "+", "--", "..."),
    "hf_assisted": Look("assisted (transformers)", "#888888", "1", "-.", "xxx"),
    "hf_pld": Look("PLD (transformers)", "#AAAAAA", "2", _DOTS, "---"),
    "pld": Look("PLD", "#E69F00", "o", "-", ""),
    "lookahead": Look("Lookahead", "#DDCC77", "s", "--", "///"),
    "sps": Look("SpS", "#0072B2", "^", "-", ""),
    "pacer": Look("PACER", "#D55E00", "D", "-", "\\\\\\"),
    "ouroboros": Look("Ouroboros", "#56B4E9", "v", "--", "///"),
    "pacer_ouroboros": Look("PACER + Ouroboros", "#CC79A7", "P", "-.", "xxx"),
    "knapspec": Look("KnapSpec", "#009E73", "h", "-", "..."),
    "clasp": Look("CLaSp", "#999933", "<", "--", "|||"),
    "del": Look("DEL", "#44AA99", ">", _DOTS, "\\\\"),
    "confl": Look("ConfLayers", "#882255", "p", "-", "///"),
    "swift": Look("SWIFT", "#AA4499", "d", "--", "ooo"),
    "mla": Look("MLA draft", "#332288", "*", "-", "+++"),
}
CONTROLLERS = {
    "none": Look("no controller", "#555555", "x", "-", ""),
    "fixed": replace(METHODS["sps"], name="fixed"),
    "tuned": Look("tuned fixed", "#88CCEE", "v", "--", "///"),
    "heuristic": Look("heuristic", "#DDCC77", "s", "-", "..."),
    "confidence": Look("confidence", "#E69F00", "o", "--", "xxx"),
    "hf_dynamic": Look("dynamic confidence", "#999933", "P", "-.", "|||"),
    "draft_verify": Look("Draft & Verify", "#117733", "<", _DOTS, "---"),
    "kangaroo": Look("Kangaroo", "#44AA99", ">", _LONG, "+++"),
    "svip": Look("SVIP", "#009E73", "X", "-", "ooo"),
    "adaedl": Look("AdaEDL", "#CC79A7", "d", "--", "///"),
    "specdecpp": Look("SpecDec++", "#AA4499", "h", "-.", "..."),
    "scalars": Look("scalars only", "#882255", "p", _DOTS, "xxx"),
    "pacer": replace(METHODS["pacer"], name="PACER"),
    "block_oracle": Look("block oracle (bound)", "#888888", "*", _LONG, "---"),
}
PHASES = {
    "draft": Look("draft", "#0072B2", "o", "-", ""),
    "verify": Look("verify", "#E69F00", "s", "--", "///"),
    "adapt": Look("adapt (learn, search)", "#882255", "^", "-.", "xxx"),
    "host": Look("host", "#BBBBBB", "D", _DOTS, "..."),
}
ATTENTION = Look("attention", "#0072B2", "o", "-", "")
MLP = Look("MLP", "#E69F00", "s", "--", "///")
CONVERTERS = {
    "transmla": Look("TransMLA", "#0072B2", "o"),
    "mha2mla": Look("MHA2MLA", "#E69F00", "s"),
    "care": Look("CARE", "#009E73", "^"),
    "svd": Look("SVD", "#CC79A7", "D"),
}
BETTER = Look("improved", "#009E73", "^")
SAME = Look("unchanged", "#777777", "o")
WORSE_LOOK = Look("worse", "#D55E00", "v")
_UNKNOWN = Look("", "#666666", "8", _DASH_DOTS, "**")
_VARIANTS: tuple[Sequence[Any], ...] = (
    "osD^vPX*",
    ("-", "--", "-.", _DOTS, _LONG, _DASH_DOTS),
    ("", "///", "...", "xxx", "---", "ooo"),
)
_OFFICIAL = "_official"


def look_of(key: str) -> Look:
    """The look of a method (`sps`), or of a controller where runs of one method differ in it (`sps/svip`)."""
    method, _, controller = key.partition("/")
    base, source = published(method)
    found = METHODS.get(base) or replace(_UNKNOWN, name=method)
    if controller:
        stop = CONTROLLERS.get(controller) or replace(_UNKNOWN, name=controller)
        found = replace(stop, name=stop.name if base == "sps" else f"{found.name}, {stop.name}")
    if not source:
        return found
    fill: Fill = "left" if ", " in source else "none"  # as another code base has it, or as its own does
    return replace(found, name=f"{found.name} ({source})", line=_LONG, fill=fill)


def published(method: str) -> tuple[str, str]:
    """`pld_hf_official` is PLD as the code base hf has it: ("pld", "official, hf"); ("pld", "") for our own."""
    if not method.endswith(_OFFICIAL):
        return method, ""
    name = method.removesuffix(_OFFICIAL)
    base = next((known for known in sorted(METHODS, key=len, reverse=True) if f"{name}_".startswith(f"{known}_")), name)
    return base, ", ".join(["official", *filter(None, [name[len(base) + 1 :].replace("_", " ")])])


def family(look: Look, names: Sequence[str]) -> dict[str, Look]:
    """The looks of all settings of one method: its own where there is one setting, else its variants in order."""
    if len(names) == 1:
        return {names[0]: look}
    return {name: variant(look, number, len(names), name) for number, name in enumerate(names)}


def variant(look: Look, number: int, count: int, name: str) -> Look:
    """One of several settings of a method: its colour, lighter from the first to the last, and marks of its own."""
    light = 0.5 * number / max(count - 1, 1)
    red, green, blue = (part + (1 - part) * light for part in to_rgb(look.color))
    markers, lines, hatches = (marks[number % len(marks)] for marks in _VARIANTS)
    return Look(name, (red, green, blue), markers, lines, hatches)


# ---- sizes


@dataclass(frozen=True)
class Venue:
    """Widths in inches of a column and of the whole page, and the size of text in points."""

    column: float
    page: float
    points: float = 8.0


VENUES = {
    "icml": Venue(3.25, 6.75),
    "acl": Venue(3.03, 6.30),
    "neurips": Venue(3.25, 5.5),
    "iclr": Venue(3.25, 5.5),
    "slides": Venue(6.0, 12.0, 13.0),
}
DEFAULT_VENUE = "icml"
_venue: contextvars.ContextVar[Venue] = contextvars.ContextVar("venue", default=VENUES[DEFAULT_VENUE])


@contextmanager
def venue(name: str) -> Iterator[None]:
    """Figures that are built inside have the sizes of this venue."""
    token = _venue.set(VENUES[name])
    try:
        yield
    finally:
        _venue.reset(token)


def settings() -> dict[Any, Any]:
    """The rc parameters of all figures."""
    points = _venue.get().points
    return {
        "font.size": points,
        "font.family": "DejaVu Sans",
        "axes.titlesize": points,
        "axes.labelsize": points,
        "xtick.labelsize": points - 1,
        "ytick.labelsize": points - 1,
        "legend.fontsize": points - 1,
        "legend.frameon": False,
        "figure.titlesize": points + 1,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.grid": True,
        "grid.linewidth": 0.4,
        "grid.color": "#DDDDDD",
        "lines.linewidth": 1.1,
        "lines.markersize": 3.5,
        "hatch.linewidth": 0.4,
        "pdf.fonttype": 42,  # text stays text, as venues ask
        "savefig.dpi": 200,
    }


def styled(build: Callable[..., Figure]) -> Callable[..., Figure]:
    """Let a figure be built in the shared style, whoever calls it."""

    @functools.wraps(build)
    def inside(*arguments: Any, **options: Any) -> Figure:
        with mpl.rc_context(settings()):
            figure = build(*arguments, **options)
            _wrap_titles(figure)
            return figure

    return inside


# ---- pieces of figures


def grid(
    count: int, *, height: float = 1.9, most: int = 4, share_x: bool = True, share_y: bool = True
) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels, at most `most` in a row, each `height` inches high at 8 points."""
    size = _venue.get()
    columns = min(count, most)
    rows = math.ceil(count / columns)
    width = size.column if count == 1 else size.page
    figure = Figure(figsize=(width, rows * height * size.points / 8), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=share_x, sharey=share_y, squeeze=False).ravel()
    for unused in axes[count:]:
        unused.remove()
    shown = list(axes[:count])
    for axis in shown:
        axis.tick_params(labelbottom=True)
    return figure, shown


def from_zero(axes: Sequence[Axes], along: str) -> None:
    """Let the axis `along` (x or y) of all panels begin at zero and end a little behind the largest value of any."""
    most = max(float(getattr(axis.dataLim, f"{along}1")) for axis in axes)
    for axis in axes:
        axis.set(**{f"{along}lim": (0.0, 1.05 * most if most > 0 else 1.0)})


def legend(figure: Figure, axes: Sequence[Axes], *, columns: int = 5, remark: str = "") -> None:
    """One legend below all panels, each label once; `remark`: what a reader must know to read it rightly."""
    found: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    columns = max(1, min(columns, len(found), _fitting(figure, found)))
    below = figure.legend(
        list(found.values()),
        list(found),
        loc="outside lower center",
        ncols=columns,
        handlelength=_HANDLE,
        columnspacing=1.5,
        title=_wrapped(figure, remark) or None,
        title_fontproperties={"size": _remark_points()},
    )
    below.get_title().set_color(_REMARK)
    below.get_title().set_multialignment("center")
    _make_room(figure, math.ceil(len(found) / columns) + len(_wrapped(figure, remark).splitlines()) + 1)


def note(figure: Figure, text: str) -> None:
    """The remark of a figure without a legend, below it."""
    figure.supxlabel(_wrapped(figure, text), fontsize=_remark_points(), color=_REMARK)
    _make_room(figure, len(_wrapped(figure, text).splitlines()))


def mark_noisy(axis: Axes, x: float, y: float) -> None:
    """A quiet mark right of the place of a speedup that NOISY_REMARK speaks of."""
    look: dict[str, Any] = {"va": "center", "color": _REMARK, "fontsize": _remark_points()}
    axis.annotate(NOISY_MARK, (x, y), xytext=(3.5, 0.0), textcoords="offset points", **look)


def remarks(*parts: tuple[str, Any]) -> str:
    """Those of the remarks that hold, as one; beside each text stands its truth value."""
    return "; ".join(text for text, holds in parts if holds)


def _make_room(figure: Figure, lines: int) -> None:
    """What stands below the panels must not make them smaller."""
    figure.set_figheight(figure.get_figheight() + lines * 1.45 * (_venue.get().points - 1) / 72)


def _remark_points() -> float:
    return _venue.get().points - 1.5


def _fitting(figure: Figure, labels: Iterable[str]) -> int:
    """How many columns of a legend fit below a figure; a letter is about 0.55 points wide per point of size."""
    points = _venue.get().points - 1
    widest = max((len(label) for label in labels), default=0)
    return int(figure.get_figwidth() * 72 / (points * (0.55 * widest + _HANDLE + 2.3)))


def _wrapped(figure: Figure, text: str) -> str:
    return textwrap.fill(text, int(figure.get_figwidth() * 72 / (0.52 * _remark_points())))


def _wrap_titles(figure: Figure) -> None:
    """Titles no wider than their panel without the names of its ticks, about 0.72 of its share of the page."""
    for axis in figure.axes:
        place = axis.get_subplotspec()
        if place is not None:
            share = len(place.colspan) / place.get_gridspec().ncols
            letters = int(0.72 * share * figure.get_figwidth() * 72 / (0.55 * float(axis.title.get_fontsize())))
            lines = axis.get_title().splitlines()
            axis.title.set_text("\n".join(textwrap.fill(line, letters, break_long_words=False) for line in lines))


def panels(frame: pd.DataFrame) -> list[str]:
    """The panels of a frame in the order of their names."""
    return sorted(frame["panel"].unique(), key=in_order)


def in_order(name: str) -> list[float | str]:
    """The key that sorts names by their words, and numbers in them by size: 10, 50, 100."""
    return [float(part) if place % 2 else part for place, part in enumerate(_NUMBERS.split(name))]
