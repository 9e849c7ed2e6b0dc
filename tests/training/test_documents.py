"""Documents come out whole and in bounds; stubs are functions without their bodies."""

from __future__ import annotations

import ast

import pytest

from specbench.training import documents

SOURCE = '''
def area(width: float, height=1.0, *rest) -> float:
    """Give the area of a rectangle, whose sides are numbers.

    Sides are never negative.
    """
    return width * height

def _hidden():
    """Say nothing that anybody outside of this module would ever want to know about."""

def short():
    """Too short."""
'''


@pytest.fixture
def one_module(monkeypatch):
    monkeypatch.setattr(documents, "_modules", lambda: (ast.parse(SOURCE),))


def test_stubs_are_public_documented_functions_without_bodies(one_module):
    (stub,) = documents.functions()
    assert stub.startswith('def area(width: float, height=1.0, *rest) -> float:\n    """Give the area')
    assert "return" not in stub
    ast.parse(stub)


def test_passages_are_whole_paragraphs_of_bounded_length():
    paragraphs = [" ".join([f"p{i}"] * 100) for i in range(5)] + ["tail"]
    found = list(documents.passages("\n\n".join(paragraphs)))
    assert [len(passage.split()) for passage in found] == [200, 200, 101]
    assert "\n\n".join(found) == "\n\n".join(paragraphs)


def test_short_texts_and_endless_paragraphs_are_no_documents():
    assert list(documents.passages("only a few words")) == []
    assert list(documents.passages("word " * 500)) == []


def test_reference_topics_are_documents(one_module):
    found = documents.documentation()
    assert len(found) > 100
    assert len(set(found)) == len(found)
    assert all(50 <= len(text.split()) <= 260 for text in found)
