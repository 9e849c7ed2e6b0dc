"""A folder of results as one HTML page that needs nothing beside it: tables, figures, environment, configuration."""

from __future__ import annotations

import base64
import importlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from jinja2 import Environment, StrictUndefined

from specbench.analysis.all_tables import all_tables
from specbench.analysis.table_text import Table, missing, numeric, shown
from specbench.figures.base import NotEnoughData
from specbench.figures.catalogue import Part, draw, parts
from specbench.figures.show import png
from specbench.results.frozen import Frozen
from specbench.results.provenance import configured
from specbench.results.summary import CONFIGURED

log = logging.getLogger(__name__)

_TEMPLATE = Path(__file__).with_name("page.html.j2")
_ENVIRONMENT = ("host", "device", "cpu", "gpu", "threads", "commit", "dirty", "load")
_PIXELS = 125  # CSS pixels an inch: text of 8 points is read without zooming
_VERSION = "version."


class Picture(NamedTuple):
    """A figure of the page: base64 of a PNG, its size in CSS pixels, and what it shows."""

    name: str
    caption: str
    png: str
    width: int
    height: int


def page(frozen: Frozen, published: pd.DataFrame, title: str) -> str:
    """The page as text; what the folder has too few rows for is listed by name.

    A figure that breaks is listed too, so that the page shows the others.
    """
    made = all_tables(frozen, published)
    pictures, lacking = _pictures(frozen)
    shared, own = _configuration(frozen.runs)
    text: str = _template().render(
        title=title,
        summary=_summary(frozen),
        tables=[{**_fields(table), "numeric": _numeric(table)} for table in made.tables],
        figures=pictures,
        missing=[*made.missing, *lacking],
        environment=_environment(frozen.runs),
        shared=shared,
        runs=own,
    )
    return text


def _template() -> Any:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))


def _fields(table: Table) -> dict[str, Any]:
    return {name: getattr(table, name) for name in ("name", "title", "columns", "rows", "notes")}


def _numeric(table: Table) -> list[bool]:
    return [numeric(table, column) for column in range(len(table.columns))]


def _summary(frozen: Frozen) -> str:
    statuses = ", ".join(f"{count} {status}" for status, count in frozen.runs["status"].value_counts().items())
    cells = f"; {len(frozen.cells)} rows of matched cells" if len(frozen.cells) else ""
    return f"{len(frozen.runs)} runs ({statuses or 'none'}), {len(frozen.samples)} answers{cells}."


# ---- figures


def _pictures(frozen: Frozen) -> tuple[list[Picture], list[str]]:
    """Every figure that can be drawn, and a sentence for each that cannot."""
    pictures, lacking = [], []
    for part in parts(frozen):
        try:
            pictures.append(_picture(part))
        except NotEnoughData as reason:
            lacking.append(f"{part.name}: {reason}")
        except Exception as error:  # the page must show the others
            log.exception("%s could not be drawn", part.name)
            lacking.append(f"{part.name} could not be drawn: {type(error).__name__}: {error}")
    return pictures, lacking


def _picture(part: Part) -> Picture:
    drawn = draw(part)
    picture = png(drawn.figure)
    width, height = (round(_PIXELS * inches) for inches in drawn.figure.get_size_inches())
    return Picture(part.name, _caption(part.module), base64.b64encode(picture).decode("ascii"), width, height)


def _caption(module: str) -> str:
    """What the figure's module says that it shows."""
    text = importlib.import_module(f"specbench.figures.{module}").__doc__ or module
    return " ".join(text.split("\n\n")[0].split())


# ---- where the numbers come from


def _environment(runs: pd.DataFrame) -> dict[str, Sequence[str]]:
    """Name -> the values that occurred in the runs, load as a range."""
    names = [name for name in runs if name in _ENVIRONMENT or str(name).startswith(_VERSION)]
    return {str(name).removeprefix(_VERSION): values for name in names if (values := _values(runs[name]))}


def _values(column: pd.Series) -> list[str]:
    known = [value for value in column if not missing(value)]
    if column.name == "load" and known:
        return [f"{min(known):.2f} to {max(known):.2f}"]
    return sorted({_text(value) for value in known})


def _configuration(runs: pd.DataFrame) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Keys with one value in all runs, and for each run its other keys."""
    keys = configured(runs)
    texts = runs[keys].map(_text)
    shared = [key for key in keys if texts[key].nunique(dropna=False) == 1]
    common = {_key(key): texts[key].iloc[0] for key in shared}
    return common, list(_own(runs, texts.drop(columns=shared)))


def _own(runs: pd.DataFrame, texts: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for run, row in zip(runs.to_dict("records"), texts.to_dict("records"), strict=True):
        names = ("status", "experiments", "commit", "load")
        own = {name: _text(run[name]) for name in names if not missing(run.get(name))}
        known = {_key(key): value for key, value in row.items() if value != "-"}
        yield {"run_id": run["run_id"], "own": own | known}


def _key(name: Any) -> str:
    return str(name).removeprefix(CONFIGURED)


def _text(value: Any) -> str:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return shown(value)
