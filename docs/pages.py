"""Writes the parts of pages that repeat code: the API reference, and programs in embedding.md.

python docs/pages.py

The tests compare the pages with what this writes, so neither says what the code does not.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

from edgespec import errors
from edgespec.concurrency.owning import Closeable
from edgespec.diagnosis.imagined_models import usual_budget, what_if
from edgespec.settings.units import parse_rate

DOCS = Path(__file__).parent
LINE_LENGTH = 88
INTRODUCTION = """\
# API reference

What may be imported from `edgespec`, and what an author of a runtime implements. Everything else
is internal. `python docs/pages.py` writes this page from the code.
"""
SECTIONS: dict[str, tuple[str, ...]] = {
    "Sessions": ("load", "plan", "Session", "AsyncSession", "Generation"),
    "Embedding models": ("load_embedder", "Embedder"),
    "Settings": ("LoadSettings", "SamplingParams", "EngineSettings"),
    "Structured answers": ("json_schema", "regular_expression", "lark_grammar", "Grammar"),
    "Traces": ("open_trace",),
    "Results": (
        *("TokenEvent", "GenerationResult", "values.Timings", "values.SpeculationStats"),
        *(
            "values.PagingStats",
            "values.MemoryStats",
            "values.TokenLogprobs",
            "memory.budget.MemoryPlan",
        ),
    ),
    "Ports": (
        *("ports.LanguageModel", "ports.Vocabulary", "registry.Runtime", "registry.PreparedModel"),
        *("registry.ModelRequest", "settings.options.RuntimeOptions", "settings.options.Flag"),
    ),
}
REMARKS = {
    "Sessions": "A session also has `plan`, a MemoryPlan, and `load_report`, seconds of loading.",
    "Results": "What generations yield and end with, what these hold, and the memory plan.",
    "Ports": "What the engine asks of a model, and what a runtime implements.",
}
CONSTRUCTED = ("AsyncSession",)
"""Classes that programs construct with arguments which are no fields."""
PREDICTIONS = re.compile(r"\| model \| disk \|(?:[^\n]*\n\|)*[^\n]*\n")
MODELS = (
    *("8B-Q4_K_M", "8B-Q8_0", "LFM2.5-8B-A1B", "Gemma-4-12B", "14B-Q4_K_M", "gpt-oss-20b"),
    *("Gemma-4-26B-A4B", "27B-Q2_0", "Qwen3.6-27B", "GLM-4.7-Flash", "Qwen3-Coder-30B-A3B"),
    *("Nemotron-3-Nano-30B-A3B", "Qwen3.6-35B-A3B", "70B-Q4_K_M"),
)
DISKS = ("0.5 GB/s", "2 GB/s")
MEMORIES = (4, 8, 16, 32)
EXAMPLE = re.compile(r"(`(examples/[\w.-]+)`:\n\n```\w+\n).*?(^```$)", re.MULTILINE | re.DOTALL)


def reference() -> str:
    """The page of the public names, in Markdown."""
    parts = [INTRODUCTION]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        if title in REMARKS:
            parts.append(f"{REMARKS[title]}\n")
        parts += map(_described, names)
    tree = inspect.cleandoc(errors.__doc__ or "")
    parts.append(f"## Errors\n\nAll are in `edgespec`.\n\n```text\n{tree}\n```\n")
    return "\n".join(parts)


def with_predictions(page: str) -> str:
    """The page, with what `edgespec plan --what-if` says in its table."""
    rows = ["| model | disk | " + " | ".join(f"{n} GiB" for n in MEMORIES) + " |"]
    rows.append("| --- " * (len(MEMORIES) + 2) + "|")
    for model, disk in product(MODELS, DISKS):
        cells = (_cell(model, n << 30, parse_rate(disk)) for n in MEMORIES)
        rows.append(f"| {model} | {disk} | " + " | ".join(cells) + " |")
    return PREDICTIONS.sub("\n".join(rows) + "\n", page)


def _cell(model: str, memory_bytes: int, disk_bytes_per_s: float) -> str:
    """Seconds per token without a draft and with the best, and of the first token."""
    try:
        found = what_if(model, usual_budget(memory_bytes), disk_bytes_per_s)
    except errors.BudgetError:
        return "too small"
    best = min((one.seconds_per_token for one in found.drafted), default=None)
    drafted = f" → {_seconds(best[0])} to {_seconds(best[1])}" if best else ""
    return f"{_seconds(found.seconds_per_token)}{drafted}; {found.first_token_s:.0f}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g}" if seconds < 10 else f"{seconds:.0f}"


def with_examples(page: str) -> str:
    """The page, with the code after each line that names a file in `examples/` as it is there."""

    def shown(match: re.Match[str]) -> str:
        return match[1] + (DOCS.parent / match[2]).read_text(encoding="utf-8") + match[3]

    return EXAMPLE.sub(shown, page)


def _described(name: str) -> str:
    """One public name, as a heading with its signature, text, fields and methods."""
    module, _, attribute = f"edgespec.{name}".rpartition(".")
    thing: Any = getattr(import_module(module), attribute)
    node = _node(thing)
    parts = [f"### {attribute}\n"]
    if isinstance(node, ast.FunctionDef):
        parts.append(_code(node, f"{module}."))
    elif attribute != name:
        parts.append(f"`{module}.{attribute}`\n")
    parts.append(_text(node))
    if isinstance(thing, type):
        parts += _members(thing, node, attribute)
    return "\n".join(parts)


def _members(thing: type, node: ast.AST, name: str) -> list[str]:
    """Table of a class's fields and properties, and its methods, those of its bases last."""
    has_fields_alone = name in SECTIONS["Settings"]
    bodies = [_node(base) for base in thing.__mro__[:0:-1] if _is_told_of(base)]
    rows: list[tuple[str, str, str, str]] = []
    methods: dict[str, str] = {}
    for body in [*bodies, node]:
        assert isinstance(body, ast.ClassDef)
        for member, following in zip(body.body, [*body.body[1:], None], strict=True):
            if isinstance(member, ast.AnnAssign) and "ClassVar" not in ast.unparse(member):
                rows.append(_field(member, following))
            elif isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                decorators = {ast.unparse(each).split("(")[0] for each in member.decorator_list}
                if has_fields_alone or "overload" in decorators:
                    continue
                if decorators & {"property", "cached_property"}:
                    rows.append((member.name, _type(member.returns), "", _line(member)))
                elif not member.name.startswith("_"):
                    methods[member.name] = f"{_code(member, f'{name}.')}\n{_text(member)}"
                elif member.name == "__init__" and name in CONSTRUCTED:
                    methods[name] = f"{_code(member, 'edgespec.', name)}\n{_text(member)}"
    defaults = _defaults(thing)
    settings = getattr(thing, "model_fields", {})
    hidden = {name for name, field in settings.items() if not field.repr}
    rows = [
        (name, kind, defaults.get(name, default), text)
        for name, kind, default, text in rows
        if not name.startswith("_") and name not in hidden
    ]
    own = [name for name in methods if name in vars(thing) or name == thing.__name__]
    ordered = [*own, *(name for name in methods if name not in own)]
    return [*([_table(rows)] if rows else []), *(methods[name] for name in ordered)]


def _defaults(thing: type) -> dict[str, str]:
    """Values of the defaults that are numbers or strings, by field."""
    values: dict[str, Any] = {
        name: field.default for name, field in getattr(thing, "model_fields", {}).items()
    }
    if is_dataclass(thing):
        values |= {field.name: field.default for field in fields(thing)}
    return {
        name: repr(str(value) if isinstance(value, str) else value)
        for name, value in values.items()
        if isinstance(value, str | int | float)
    }


def _is_told_of(base: type) -> bool:
    """True if members of a base class are those of its subclasses on the page."""
    is_ours = base.__module__.startswith("edgespec.")
    return is_ours and base.__module__ not in {"edgespec.settings.base", Closeable.__module__}


def _field(member: ast.AnnAssign, following: ast.stmt | None) -> tuple[str, str, str, str]:
    text = ""
    if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
        text = " ".join(str(following.value.value).split())
    return ast.unparse(member.target), _type(member.annotation), _default(member.value), text


def _type(annotation: ast.expr | None) -> str:
    """An annotation without what only validates."""
    whole_numbers = re.compile(r"\b(Count|AtLeastOne|Threads)\b")

    class Plain(ast.NodeTransformer):
        def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
            self.generic_visit(node)
            is_annotated = ast.unparse(node.value) == "Annotated"
            return node.slice.elts[0] if is_annotated else node  # type: ignore[attr-defined]

    plain = ast.unparse(Plain().visit(annotation)) if annotation else "None"
    return whole_numbers.sub("int", plain)


def _default(value: ast.expr | None) -> str:
    if not isinstance(value, ast.Call) or ast.unparse(value.func) not in {"Field", "field"}:
        return ast.unparse(value) if value else ""
    given = {keyword.arg: keyword.value for keyword in value.keywords}
    if "default_factory" in given:
        made = ast.unparse(given["default_factory"])
        return {"dict": "{}"}.get(made, "{}" if made.startswith("FrozenDict") else f"{made}()")
    default = given.get("default", value.args[0] if value.args else None)
    return ast.unparse(default) if default else ""


def _table(rows: list[tuple[str, str, str, str]]) -> str:
    lines = ["| name | type | default | meaning |", "| --- | --- | --- | --- |"]
    for name, kind, default, text in rows:
        cells = [f"`{name}`", f"`{kind.replace(' | ', ' or ')}`", default and f"`{default}`", text]
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _code(node: ast.FunctionDef | ast.AsyncFunctionDef, prefix: str, constructed: str = "") -> str:
    """The signature as a block of code."""
    arguments = node.args
    names = [*arguments.args, *arguments.kwonlyargs]
    name, returned = node.name, f" -> {_type(node.returns)}"
    if name == "__init__":
        name, returned = constructed, ""
    n_bare = len(arguments.args) - len(arguments.defaults)
    defaults = [*[None] * n_bare, *arguments.defaults, *arguments.kw_defaults]
    each = [
        ast.unparse(one) + (f" = {ast.unparse(default)}" if default else "")
        for one, default in zip(names, defaults, strict=True)
    ]
    if arguments.kwonlyargs:
        each.insert(len(arguments.args), "*")
    if each and each[0] in {"self", "cls"}:
        del each[0]
    if arguments.kwarg:
        each.append(f"**{ast.unparse(arguments.kwarg)}")
    start = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    line = f"{start}{prefix}{name}({', '.join(each)}){returned}"
    if len(line) > LINE_LENGTH:
        inner = textwrap.indent(",\n".join(each), "    ")
        line = f"{start}{prefix}{name}(\n{inner},\n){returned}"
    return f"```python\n{line}\n```\n"


def _text(node: ast.AST) -> str:
    return f"{_docstring(node)}\n"


def _line(node: ast.AST) -> str:
    return " ".join(_docstring(node).split())


def _docstring(node: ast.AST) -> str:
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    return ast.get_docstring(node) or ""


def _node(thing: Any) -> ast.AST:
    module = _parsed(Path(inspect.getfile(thing)))
    return next(node for node in module.body if getattr(node, "name", "") == thing.__name__)


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    (DOCS / "reference.md").write_text(reference(), encoding="utf-8")
    page = DOCS / "embedding.md"
    page.write_text(with_examples(page.read_text(encoding="utf-8")), encoding="utf-8")
    page = DOCS / "machines.md"
    page.write_text(with_predictions(page.read_text(encoding="utf-8")), encoding="utf-8")
