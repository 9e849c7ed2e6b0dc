"""The house rules that no linter knows: short functions, short files, few positional parameters, no print."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MEDIAN, NINTH_DECILE, LONGEST, FILE_LINES, POSITIONAL = 10, 35, 70, 350, 5
PACKAGE = sorted((ROOT / "specbench").rglob("*.py"))
EVERYTHING = sorted([ROOT / "run.py", *PACKAGE, *(ROOT / "scripts").rglob("*.py"), *(ROOT / "tests").rglob("*.py")])

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Found:
    """A function, where it stands, and whether it belongs to a class."""

    node: Function
    file: Path
    method: bool

    @property
    def where(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.node.lineno} {self.node.name}"

    @property
    def length(self) -> int:
        """Lines from `def` to the end, docstring and comments included."""
        return (self.node.end_lineno or self.node.lineno) - self.node.lineno + 1

    @property
    def positional(self) -> list[ast.arg]:
        """Parameters that can be given by position, `self` and `cls` not counted."""
        arguments = [*self.node.args.posonlyargs, *self.node.args.args]
        static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in self.node.decorator_list)
        return arguments[1:] if self.method and not static else arguments


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))


@cache
def functions(*, tests: bool) -> tuple[Found, ...]:
    """Functions and methods of the package and the scripts, or of the tests; nested ones too."""
    files = [file for file in EVERYTHING if file.is_relative_to(ROOT / "tests") == tests]
    return tuple(found for file in files for found in _within(tree(file), file, method=False))


def _within(node: ast.AST, file: Path, *, method: bool) -> Iterator[Found]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield Found(child, file, method)
        yield from _within(child, file, method=isinstance(child, ast.ClassDef))


def booleans(function: Found) -> Iterator[str]:
    """Names of positional parameters that are annotated bool or default to True or False."""
    arguments = function.positional
    defaults = function.node.args.defaults
    padded = [None] * (len(arguments) - len(defaults)) + list(defaults)
    for argument, default in zip(arguments, padded[-len(arguments) :] if arguments else [], strict=True):
        annotated = isinstance(argument.annotation, ast.Name) and argument.annotation.id == "bool"
        if annotated or (isinstance(default, ast.Constant) and isinstance(default.value, bool)):
            yield argument.arg


def test_the_rules_are_applied_to_something() -> None:
    assert len(functions(tests=False)) > 300
    assert len(functions(tests=True)) > 100


def test_functions_are_short() -> None:
    lengths = sorted(function.length for function in functions(tests=False))
    assert statistics.median(lengths) <= MEDIAN
    assert lengths[int(0.9 * len(lengths))] <= NINTH_DECILE


@pytest.mark.parametrize("tests", [False, True], ids=["package", "tests"])
def test_no_function_is_long(tests: bool) -> None:
    assert [f"{f.where}: {f.length} lines" for f in functions(tests=tests) if f.length > LONGEST] == []


def test_no_file_is_long() -> None:
    lengths = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in EVERYTHING}
    assert [f"{file.relative_to(ROOT)}: {n} lines" for file, n in lengths.items() if n > FILE_LINES] == []


def test_few_positional_parameters() -> None:
    counts = {function.where: len(function.positional) for function in functions(tests=False)}
    assert {where: count for where, count in counts.items() if count > POSITIONAL} == {}


def test_no_boolean_by_position() -> None:
    assert [f"{f.where}({name})" for f in functions(tests=False) for name in booleans(f)] == []


def test_public_things_of_the_package_are_described() -> None:
    """Every public module, class and module-level function; what overrides a described method needs no second text."""
    silent = []
    for file in PACKAGE:
        module = tree(file)
        named = [node for node in module.body if isinstance(node, Function | ast.ClassDef)]
        public = [node for node in named if not node.name.startswith("_")]
        silent += [f"{file.relative_to(ROOT)}:{n.lineno} {n.name}" for n in public if not ast.get_docstring(n)]
        if not ast.get_docstring(module):
            silent.append(str(file.relative_to(ROOT)))
    assert silent == []


def test_the_package_never_prints() -> None:
    prints = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in PACKAGE
        for node in ast.walk(tree(file))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert prints == []


def test_run_py_is_short() -> None:
    assert len((ROOT / "run.py").read_text(encoding="utf-8").splitlines()) < 60


def test_nothing_is_called_utils() -> None:
    assert [str(file.relative_to(ROOT)) for file in EVERYTHING if file.stem in ("utils", "util", "helpers")] == []
