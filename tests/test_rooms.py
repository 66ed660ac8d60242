"""Allowed imports: the folders are the architecture, and this holds it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {"edgespec": ROOT / "edgespec", "edgespec_runtimes": ROOT / "runtimes/edgespec_runtimes"}

CORE = {
    "concurrency", "errors", "extras", "files", "pool", "reports", "settings", "theory",
    "tracing", "values",
}  # fmt: skip
PORTS = CORE | {"ports"}
RESOURCES = PORTS | {"memory", "paging"}
LOADING = RESOURCES | {"engine", "rules", "registry", "tools"}
SESSION = LOADING | {"session", "models.catalogue"}
MAY_IMPORT: dict[str, set[str]] = {
    **dict.fromkeys(CORE, CORE),
    **dict.fromkeys(PORTS - CORE, PORTS),
    "memory": PORTS,
    "paging": PORTS,
    "engine": PORTS | {"rules", "state"},
    "rules": PORTS,
    "chat": PORTS,
    "hub": PORTS,
    "state": PORTS | {"memory"},
    "grammar": PORTS,
    "completions": PORTS | {"chat", "grammar"},
    "server": SESSION | {"completions"},
    "batch": RESOURCES | {"completions"},
    "registry": RESOURCES,
    "tools": PORTS,
    "tracing.trace_file": CORE,
    "session": LOADING | {"chat", "completions", "grammar", "hub", "models.catalogue", "state"},
    "models": SESSION,
    "models.catalogue": PORTS | {"models"},
    "diagnosis": SESSION | {"models"},
    "jobs": RESOURCES,
    "bench": SESSION | {"jobs", "models"},
    "cli": SESSION
    | {"batch", "bench", "chat", "completions", "diagnosis", "grammar", "hub", "models"}
    | {"jobs", "server", "state", "tracing.trace_file"},
    "__main__": {"cli"},
    "_pyinstaller": {"concurrency"},
    "": {"engine", "errors", "grammar", "rules", "session", "settings"}
    | {"state", "tracing.trace_file", "values"},
}
"""The parts that each part of `edgespec` may import besides itself; a module that may import more
than its folder stands by itself."""

RUNTIMES = RESOURCES | {"registry"}
"""Parts of `edgespec` that any runtime may import: ports and what lies below them."""

RUNTIME_ROOMS: dict[str, list[str]] = {
    "gguf": ["file", "llama", "kernels", "context", "weights", ""],
    "onnx": ["ort", "files", "graph", "memory", "weights", "prepare", ""],
}
"""Parts of each runtime from the lowest up; each may import those before it."""


def modules() -> Iterator[tuple[str, Path]]:
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            yield ".".join((package, *(part for part in parts if part != "__init__"))), path


ALL = dict(modules())
IMPORT = re.compile(
    r"^ *(?:from edgespec[\w.]* import (?:\((?:[^()#]|#.*)*\)|[^(].*)|import edgespec.*)",
    re.MULTILINE,
)
"""A statement that imports something of ours, at any depth of a module."""


@cache
def imports(module: str) -> frozenset[str]:
    """The modules of ours that `module` imports, at any depth of its code."""
    found: set[str] = set()
    for statement in IMPORT.findall(ALL[module].read_text()):
        (node,) = ast.parse(statement.strip()).body
        if isinstance(node, ast.ImportFrom) and node.module:
            full = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {name if name in ALL else node.module for name in full}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return frozenset(name for name in found if name.split(".")[0] in PACKAGES)


def room(module: str, depth: int = 1) -> str:
    """The part of its package that a module belongs to: `memory` of `edgespec.memory.budget`."""
    parts = [*module.split("."), ""]
    if ".".join(parts[1:3]) in MAY_IMPORT:
        return ".".join(parts[1:3])
    return parts[depth]


def test_edgespec_imports_downwards() -> None:
    upwards = [
        (module, name)
        for module in ALL
        if module.split(".")[0] == "edgespec"
        for name in imports(module)
        if name.startswith("edgespec_runtimes")
        or room(name) not in MAY_IMPORT[room(module)] | {room(module)}
    ]
    assert not upwards


def test_a_runtime_imports_ports_and_what_lies_below() -> None:
    others = [
        (module, name)
        for module in ALL
        if module.split(".")[0] != "edgespec"
        for name in imports(module)
        if name.split(".")[0] == "edgespec" and room(name) not in RUNTIMES
    ]
    assert not others


@pytest.mark.parametrize("runtime", RUNTIME_ROOMS)
def test_a_runtimes_rooms_lie_on_one_another(runtime: str) -> None:
    order = RUNTIME_ROOMS[runtime]
    package = f"edgespec_runtimes.{runtime}"
    upwards = [
        (module, name)
        for module in ALL
        if module.startswith(f"{package}.")
        for name in imports(module)
        if name.startswith(f"{package}.") and _level(name, order) > _level(module, order)
    ]
    assert not upwards


def test_what_runs_models_knows_nothing_of_enlarging() -> None:
    assert not [
        (module, name)
        for module in ALL
        if room(module) != "enlarge"
        for name in imports(module)
        if name.startswith(f"{_ENLARGE}.")
    ]


_ENLARGE = "edgespec_runtimes.enlarge"


def _level(module: str, order: list[str]) -> int:
    name = room(module, 2)
    return order.index(name if name in order else "")


PARTS = {"edgespec": ROOT / "edgespec", "tests": ROOT / "tests"} | {
    folder.name: folder
    for folder in (ROOT / "runtimes/edgespec_runtimes").iterdir()
    if folder.is_dir()
}
"""Folders that tell files of the same name apart, if files of both can have it."""
OF_EACH_RUNTIME = {
    *("baselines.py", "chat_format.py", "details.py", "entry.py", "measuring.py", "model.py"),
    *("options.py", "paged.py", "prepared.py", "vocabulary.py"),
}
"""Files that each runtime has, for the same thing."""


def file_names(part: str) -> Counter[str]:
    names = Counter(path.name for path in PARTS[part].rglob("*.py"))
    return names - Counter({name: names[name] for name in ("__init__.py", "conftest.py")})


@pytest.mark.parametrize("part", PARTS)
def test_a_file_name_occurs_once_in_each_part(part: str) -> None:
    assert not [name for name, n in file_names(part).items() if n > 1]


def test_a_file_name_occurs_in_two_parts_only_where_each_runtime_has_it() -> None:
    """`edgespec` may have it, too: the port or the base that the runtimes implement."""
    names = {part: file_names(part) for part in PARTS}
    parts = {
        name: {part for part in PARTS if name in names[part]}
        for name in set().union(*names.values())
    }
    shared = {name: found for name, found in parts.items() if len(found) > 1}
    assert shared.keys() == OF_EACH_RUNTIME
    assert all(
        {"gguf", "onnx"} <= found <= {"gguf", "onnx", "edgespec"} for found in shared.values()
    )
    ports = {path.name for path in (ROOT / "edgespec/ports").iterdir()}
    assert {n for n, found in shared.items() if "edgespec" in found} <= ports | {"options.py"}


def test_a_folder_holds_at_most_20_modules() -> None:
    n_modules = Counter(path.parent for path in ALL.values() if path.stem != "__init__")
    assert not {folder: n for folder, n in n_modules.items() if n > 20}


def test_a_module_of_more_than_400_lines_says_why() -> None:
    texts = {module: path.read_text() for module, path in ALL.items()}
    long = {module: text for module, text in texts.items() if len(text.splitlines()) > 400}
    assert not [
        module
        for module, text in long.items()
        if "longer than others" not in " ".join((ast.get_docstring(ast.parse(text)) or "").split())
    ]


MOST_LINES = {
    "batch": 509,
    "bench": 1232,
    "chat": 1425,
    "cli": 4485,
    "completions": 3818,
    "concurrency": 487,
    "diagnosis": 481,
    "engine": 3947,
    "enlarge": 1135,
    "gguf": 11463,
    "grammar": 835,
    "hub": 458,
    "jobs": 408,
    "kit": 465,
    "memory": 1285,
    "models": 699,
    "onnx": 7874,
    "paging": 1453,
    "ports": 498,
    "rules": 918,
    "server": 1922,
    "session": 2203,
    "settings": 925,
    "state": 513,
}
"""Lines of folders, which fall unless a commit says what it adds."""


@pytest.mark.parametrize("folder", MOST_LINES)
def test_a_folder_grows_no_longer(folder: str) -> None:
    files = (path for package in PACKAGES.values() for path in (package / folder).rglob("*.py"))
    assert sum(len(path.read_text().splitlines()) for path in files) <= MOST_LINES[folder]


CHANGES = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem"),
    *("popleft", "remove", "reverse", "setdefault", "sort", "update"),
}
"""Methods that change a container."""


def changed_globals(text: str) -> list[str]:
    """Statements in functions that change what a name of their module holds, or the name."""
    tree = ast.parse(text)
    bound = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    names = {
        name.id
        for node in bound
        for target in getattr(node, "targets", [getattr(node, "target", None)])
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }

    def is_global(node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in names

    def changes(node: ast.AST) -> bool:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return is_global(node.func.value) and node.func.attr in CHANGES
        is_stored = isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)
        if is_stored and isinstance(node, ast.Subscript | ast.Attribute):
            return is_global(node.value)
        return isinstance(node, ast.Global)

    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda))
    return [ast.unparse(node) for one in functions for node in ast.walk(one) if changes(node)]


@pytest.mark.parametrize("change", [
    "_all.append(n)", "_all[n] = 1", "del _all[n]", "_all[n] += 1", "_all.size = n", "global _all"
])  # fmt: skip
def test_a_changed_global_is_found(change: str) -> None:
    assert changed_globals(f"_all: dict[int, int] = {{}}\ndef f(n: int) -> None:\n    {change}\n")
    assert not changed_globals("def f(n: int) -> None:\n    _all = []\n    _all.append(n)\n")


def test_a_modules_globals_stay_as_they_were_imported() -> None:
    """State belongs to an object; what a process has once is one that `functools.cache` holds."""
    changed = {module: changed_globals(path.read_text()) for module, path in ALL.items()}
    assert not {module: found for module, found in changed.items() if found}
