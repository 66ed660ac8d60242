"""The flags that constrain the text by a JSON schema, a grammar or a regular expression."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from edgespec.cli.flags import groups
from edgespec.cli.flags.checked_values import read_text
from edgespec.errors import UsageError
from edgespec.grammar.specification import (
    MAX_CHARACTERS,
    Grammar,
    check_installed,
    json_schema,
    lark_grammar,
    regular_expression,
)

_FLAGS: dict[str, tuple[str, Callable[[str], Grammar]]] = {
    "json_schema": ("--json-schema", json_schema),
    "json_schema_file": ("--json-schema-file", json_schema),
    "grammar": ("--grammar", lark_grammar),
    "grammar_file": ("--grammar-file", lark_grammar),
    "regex": ("--regex", regular_expression),
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("structured output")
    groups.flag(
        group, "--json-schema JSON", "write JSON that fits this schema; {} is any JSON value"
    )
    groups.flag(group, "--json-schema-file FILE", "the same, from a file")
    groups.flag(group, "--grammar TEXT", "write text of this Lark grammar, in llguidance's dialect")
    groups.flag(group, "--grammar-file FILE", "the same, from a file")
    groups.flag(group, "--regex TEXT", "write text that matches this regular expression as a whole")


def grammar_from(args: argparse.Namespace) -> Grammar | None:
    """The chosen grammar; `args.grammars` is set so that the plan keeps memory for it. Raises
    UsageError and GrammarError."""
    names = [name for name in _FLAGS if name in args]
    if not names:
        return None
    check_installed()
    if len(names) > 1:
        first, second = (_FLAGS[name][0] for name in names[:2])
        raise UsageError(f"give either {first} or {second}, not both")
    flag, make = _FLAGS[names[0]]
    text = getattr(args, names[0])
    if names[0].endswith("_file"):
        text = read_text(flag, Path(text), 4 * MAX_CHARACTERS)
    grammar = make(text)
    args.grammars = True
    return grammar
