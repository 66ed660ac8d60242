"""The flags that constrain the text by a JSON schema, a grammar or a regular expression."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from edgespec.cli.flags import groups
from edgespec.cli.flags.checked_values import text_or_file
from edgespec.errors import UsageError
from edgespec.grammar.specification import (
    MAX_CHARACTERS,
    Grammar,
    check_installed,
    json_schema,
    lark_grammar,
    regular_expression,
)
from edgespec.settings.base import spell

_MAKERS: dict[str, Callable[[str], Grammar]] = {
    "json_schema": json_schema,
    "grammar": lark_grammar,
    "regex": regular_expression,
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
    names = sorted(name for name in vars(args) if name.removesuffix("_file") in _MAKERS)
    if not names:
        return None
    check_installed()
    if len(names) > 1:
        raise UsageError(f"give either {spell(names[0])} or {spell(names[1])}, not both")
    name = names[0].removesuffix("_file")
    grammar = _MAKERS[name](text_or_file(args, name, 4 * MAX_CHARACTERS) or "")
    args.grammars = True
    return grammar
