"""Texts that every Python installation has: documentation strings, reference topics, functions to complete."""

from __future__ import annotations

import ast
import importlib
import inspect
import sysconfig
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from specbench.tasks.longdoc import MODULES

_LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "site-packages", "turtledemo", "ensurepip", "__pycache__"}
_DOCUMENT_WORDS = (50, 260)
_FUNCTION_WORDS = 8  # a shorter documentation string says too little to write the function from
_FUNCTION_CHARS = 1200

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def documentation() -> list[str]:
    """Passages of the standard library's documentation strings and of pydoc's topics, each long enough to summarise."""
    topics = importlib.import_module("pydoc_data.topics").topics
    texts = [text for tree in _modules() for text in _docstrings(tree)] + [str(topics[name]) for name in sorted(topics)]
    return list(dict.fromkeys(passage for text in texts for passage in passages(text)))


def functions() -> list[str]:
    """Signatures with documentation strings of the standard library's public functions, without their bodies."""
    return list(dict.fromkeys(stub for tree in _modules() for stub in _stubs(tree)))


def passages(text: str) -> Iterator[str]:
    """Whole paragraphs of a text put together until they are long enough, never longer than the upper bound."""
    low, high = _DOCUMENT_WORDS
    held: list[str] = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if held and len(" ".join([*held, paragraph]).split()) > high:
            yield from _long_enough(held, low)
            held = []
        if len(paragraph.split()) <= high:
            held.append(paragraph.rstrip())
    yield from _long_enough(held, low)


def _long_enough(held: list[str], low: int) -> Iterator[str]:
    text = "\n\n".join(held).strip()
    if len(text.split()) >= low:
        yield text


@cache
def _modules() -> tuple[ast.Module, ...]:
    """Parsed sources of the standard library, without those that the task longdoc measures on."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [path for path in sorted(root.rglob("*.py")) if not _LEFT_OUT & set(path.relative_to(root).parts)]
    found = (_parsed(path) for path in files if path.name not in MODULES)
    return tuple(tree for tree in found if tree is not None)


def _parsed(path: Path) -> ast.Module | None:
    try:
        with warnings.catch_warnings(action="ignore"):  # old sources hold odd escapes
            return ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError):  # files that show how parsing fails
        return None


def _docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, Documented) and (text := ast.get_docstring(node)):
            yield text


def _stubs(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
        if isinstance(node, ast.FunctionDef) and text and not node.name.startswith("_"):
            returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            body = text.replace('"""', "'''").replace("\n", "\n    ")
            stub = f'def {node.name}({ast.unparse(node.args)}){returns}:\n    """{body}\n    """'
            if len(text.split()) >= _FUNCTION_WORDS and len(stub) <= _FUNCTION_CHARS:
                yield stub
