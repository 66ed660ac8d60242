"""Code that other versions of Python take otherwise than the one that runs the tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def names_of_module(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for statement in tree.body:
        if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
            names.add(statement.name)
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).split(".")[0] for alias in statement.names)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            names.update(node.id for node in ast.walk(statement) if is_stored(node))
    return names


def is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def read_outside(node: ast.AST, hidden: frozenset[str] = frozenset()) -> Iterator[str]:
    """Names that are read where no comprehension has a variable of that name."""
    if isinstance(node, (*COMPREHENSIONS, ast.GeneratorExp)):
        targets = (ast.walk(generator.target) for generator in node.generators)
        hidden |= {found.id for target in targets for found in target if is_stored(found)}
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in hidden:
        yield node.id
    for child in ast.iter_child_nodes(node):
        yield from read_outside(child, hidden)


def confused(source: str) -> list[str]:
    """Functions that read a name of their module that is a comprehension's variable in them, too:
    CPython 3.12.3 took it for a local variable that has no value yet."""
    tree = ast.parse(source)
    known, found = names_of_module(tree), []
    for function in ast.walk(tree):
        if not isinstance(function, FUNCTIONS):
            continue
        comprehensions = (node for node in ast.walk(function) if isinstance(node, COMPREHENSIONS))
        variables = {
            node.id
            for comprehension in comprehensions
            for generator in comprehension.generators
            for node in ast.walk(generator.target)
            if is_stored(node)
        }
        if both := known & variables:
            both &= {*read_outside(function)}
        found += [f"{function.name}: {name}" for name in sorted(both)]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["edgespec", "runtimes", "models", "examples"])
def test_no_comprehension_hides_a_name_that_its_function_reads(folder: str):
    files = sorted((ROOT / folder).rglob("*.py"))
    found = {str(path): names for path in files if (names := confused(path.read_text("utf-8")))}
    assert not found


def test_what_is_looked_for_is_found():
    source = (
        "from m import value\n\ndef f(a):\n    b = [value for value in a]\n    return value(b)\n"
    )
    assert confused(source) == ["f: value"]
    assert not confused(source.replace("value for value", "x for x"))
