"""The words of the code: docstrings make sense alone, and a class name means one class."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRODUCT = sorted([*(ROOT / "edgespec").rglob("*.py"), *(ROOT / "runtimes").rglob("*.py")])
ALL = sorted([*PRODUCT, *(ROOT / "tests").rglob("*.py"), *(ROOT / "models/recipe").rglob("*.py")])

OPENINGS = r"(Of|That|What|Who|Whose|Whether|Which|Where|By|How|As|So|From)\b"
FRAGMENT = re.compile(rf"\s*{OPENINGS}")
"""Openings that need the line above: a tooltip shows a docstring without it."""
SUSPECT = re.compile(rf"""["'][\s\\]*{OPENINGS}""")
"""Any string with such an opening; files without one are not parsed."""
CLASS = re.compile(r"^class (\w+)", re.MULTILINE)


@cache
def source(path: Path) -> str:
    return path.read_text()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(source(path))


def docstrings(path: Path) -> Iterator[str]:
    """Docstrings of modules, classes and functions, and strings below assignments."""
    for node in ast.walk(parsed(path)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(ast.Constant(str(text))):
                    yield text


def test_docstrings_open_with_a_noun_or_a_verb() -> None:
    suspects = [path for path in ALL if SUSPECT.search(source(path))]
    found = [(str(path), t) for path in suspects for t in docstrings(path) if FRAGMENT.match(t)]
    assert not found


@pytest.mark.parametrize("quote", ['"', "'", 'r"', '"""', '"""\n    ', '"""\\\n'])
def test_a_docstring_of_any_form_is_read(quote: str) -> None:
    assert SUSPECT.search(f"{quote}What it is")


def test_a_class_name_occurs_once() -> None:
    names = Counter(name for path in ALL for name in CLASS.findall(source(path)))
    suspects = {name for name, n in names.items() if n > 1}  # some stand in a string
    files = (path for path in ALL if suspects.intersection(CLASS.findall(source(path))))
    found = Counter(
        node.name for path in files for node in parsed(path).body if isinstance(node, ast.ClassDef)
    )
    assert not [name for name, n in found.items() if n > 1]


SECOND_MEANINGS = {
    "ahead": ("edgespec/concurrency", "background"),
    "alone": ("edgespec/engine", "ending or exclusive"),
    "memory": ("edgespec/engine", "state_store"),
    "n_places": ("edgespec/engine", "n_slots"),
    "owner": ("edgespec/engine", "client"),
    "pair": ("edgespec/engine", "slot"),
    "prospect": ("edgespec/session", "strategy"),
}
"""Names that mean another thing elsewhere: where they are banned, and the name for it there."""
ENGINE = ("edgespec/engine", "edgespec/rules")
"""Folders in which a name that is banned in the engine is banned."""


@cache
def names_in(path: Path) -> frozenset[tuple[str, str]]:
    """Arguments, variables, attributes, functions and classes, with the types of arguments."""
    found = set()
    for node in ast.walk(parsed(path)):
        match node:
            case ast.arg(arg=name, annotation=kind):
                found |= {(name, ""), (name, ast.unparse(kind) if kind is not None else "")}
            case ast.Name(id=name) | ast.Attribute(attr=name):
                found.add((name, ""))
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add((name, ""))
    return frozenset(found)


@pytest.mark.parametrize("name", SECOND_MEANINGS)
def test_a_name_has_no_second_meaning(name: str) -> None:
    folder, better = SECOND_MEANINGS[name]
    folders = ENGINE if folder in ENGINE else (folder,)
    inside = [path for path in PRODUCT for each in folders if path.is_relative_to(ROOT / each)]
    assert inside, f"{folder} is gone"
    found = [str(path) for path in inside if (name, "") in names_in(path)]
    assert not found, f"{name} is something else: say {better}"


@pytest.mark.parametrize("folder", ["edgespec/ports", "edgespec/engine", "edgespec/rules"])
def test_a_text_is_no_number(folder: str) -> None:
    """A place for a text in a model is a slot."""
    inside = (path for path in PRODUCT if path.is_relative_to(ROOT / folder))
    assert not [str(path) for path in inside if ("text", "int") in names_in(path)]
