"""The words of the code: docstrings make sense alone, and a class name means one class."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRODUCT = sorted([*(ROOT / "edgespec").rglob("*.py"), *(ROOT / "runtimes").rglob("*.py")])
ALL = sorted([*PRODUCT, *(ROOT / "tests").rglob("*.py"), *(ROOT / "models/recipe").rglob("*.py")])

FRAGMENT = re.compile(r"\s*(Of|That|What|Who|Whose|Whether|Which|Where|By|How|As|So|From)\b")
"""Openings that need the line above: a tooltip shows a docstring without it."""


def docstrings(path: Path) -> Iterator[str]:
    """Docstrings of modules, classes and functions, and strings below assignments."""
    for node in ast.walk(ast.parse(path.read_text())):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(ast.Constant(str(text))):
                    yield text


@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_open_with_a_noun_or_a_verb(path: Path) -> None:
    assert not [text for text in docstrings(path) if FRAGMENT.match(text)]


def test_a_class_name_occurs_once() -> None:
    names = Counter(
        node.name
        for path in ALL
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    )
    assert not [name for name, n in names.items() if n > 1]
