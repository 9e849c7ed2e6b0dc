"""The notebooks run: each as a script here, and in a kernel (slow); both halves of a pair hold the same cells."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import jupytext
import matplotlib as mpl
import nbformat
import pyarrow as pa
import pytest
from nbclient import NotebookClient

from specbench.results.files import write_parquet
from specbench.results.frozen import freeze, load_frozen
from specbench.results.schema import DERIVED
from tests.figures.conftest import RUNS, cells, reconstruction
from tests.figures.made_up import write
from tests.results.folders import paper

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "results" / "paper"
SCRIPTS = sorted((ROOT / "notebooks").glob("*.py"))
NAMES = [script.stem for script in SCRIPTS]


pytestmark = pytest.mark.usefixtures("few_draws")


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Frozen results made from rows: every kind of table, but not every figure, as notebooks must go on without."""
    root = tmp_path_factory.mktemp("notebooks")
    for run in RUNS:
        write(run, root / "results")
    freeze(paper(root / "results"), root / "paper")
    for name, frame in (("cells", cells()), ("reconstruction", reconstruction())):
        write_parquet(root / "paper" / f"{name}.parquet", pa.Table.from_pandas(frame, DERIVED[name]))
    return root / "paper"


@pytest.fixture
def shipped(request):
    """The shipped results, or made ones where none are shipped yet."""
    there = SHIPPED.is_dir() and len(load_frozen(SHIPPED).runs) > 0
    return SHIPPED if there else request.getfixturevalue("made")


def test_there_are_five():
    assert [name[:2] for name in NAMES] == ["01", "02", "03", "04", "05"]


def some() -> list[Any]:
    """A notebook takes ten seconds: the first and the last always, the others when slow."""
    ends = (SCRIPTS[0], SCRIPTS[-1])
    return [pytest.param(path, id=path.stem, marks=() if path in ends else pytest.mark.slow) for path in SCRIPTS]


def test_make_executes_both_halves_of_a_pair(tmp_path: Path) -> None:
    jupytext_key = "#   jupytext:\n#     formats: ipynb,py:percent\n"
    kernel = "#   kernelspec:\n#     display_name: Python 3\n#     language: python\n#     name: python3\n"
    script = tmp_path / "tiny.py"
    cell_of_code = "# %%\nimport sys\nprint(6 * 7, sys.prefix)\n"
    script.write_text(f"# ---\n# jupyter:\n{jupytext_key}{kernel}# ---\n\n{cell_of_code}", encoding="utf-8")
    words = ["make", "-o", "setup", "notebooks", f"NOTEBOOKS={script}", f"VENV={sys.prefix}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (cell,) = nbformat.read(script.with_suffix(".ipynb"), as_version=4).cells
    number, prefix = cell.outputs[0].text.split()
    assert number == "42"
    assert Path(prefix).resolve() == Path(sys.prefix).resolve()


@pytest.mark.parametrize("script", some())
def test_a_notebook_runs(script, shipped, monkeypatch):
    monkeypatch.setenv("SPECBENCH_RESULTS", str(shipped))
    monkeypatch.chdir(script.parent)
    with mpl.rc_context({"backend": "agg"}):
        found = runpy.run_path(str(script))
    assert len(found["frozen"].runs) > 0


@pytest.mark.parametrize("script", SCRIPTS, ids=NAMES)
def test_both_halves_of_a_pair_hold_the_same_cells(script):
    text, notebook = jupytext.read(script), nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    cells = [[(cell.cell_type, cell.source) for cell in half.cells] for half in (text, notebook)]
    assert cells[0] == cells[1], "run `make notebooks`"


@pytest.mark.parametrize("script", SCRIPTS, ids=NAMES)
def test_every_cell_of_code_is_introduced(script):
    """A reader must be told what to see: after the imports no two tables or figures without text in between."""
    cells = jupytext.read(script).cells
    assert cells[0].cell_type == "markdown"
    words = sum(len(cell.source.split()) for cell in cells if cell.cell_type == "markdown")
    assert words > 150


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=NAMES)
def test_a_notebook_runs_in_a_kernel_on_other_results(script, made, monkeypatch):
    monkeypatch.setenv("SPECBENCH_RESULTS", str(made))
    notebook = jupytext.read(script)
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(script.parent)}})
    client.execute()  # raises on the first cell that fails
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    assert "image/png" in kinds or "text/markdown" in kinds
