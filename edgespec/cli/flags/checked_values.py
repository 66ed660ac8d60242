"""Values of flags that are no settings: texts and files, templates and grammars."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.errors import UsageError
from edgespec.files.named_errors import named
from edgespec.files.regular import read_regular
from edgespec.settings.base import spell

if TYPE_CHECKING:
    from edgespec.grammar.specification import Grammar

MAX_TEMPLATE_BYTES = 4 << 20


def read_text(flag: str, path: Path, max_bytes: int) -> str:
    """The text of a UTF-8 file. Raises UsageError."""
    with named(f"{flag} {path}"):
        return read_regular(path, max_bytes).decode("utf-8-sig")


def text_of(args: argparse.Namespace, name: str, max_bytes: int) -> str | None:
    """The value of the flag `name`, or the text of the file that it names with @; None without the
    flag. Raises UsageError."""
    value: str | None = getattr(args, name, None)
    if value is None or not value.startswith("@"):
        return value
    return read_text(spell(name), Path(value[1:]), max_bytes)


def template_from(args: argparse.Namespace) -> str | None:
    """The chosen chat template; None leaves the model's own. Raises UsageError."""
    from edgespec.chat import prompts  # with numpy, which flags do without

    prompts.check_installed()
    from edgespec.chat import template  # noqa: F401 - here, so that its memory is planned

    return text_of(args, "chat_template", MAX_TEMPLATE_BYTES)


def grammar_from(args: argparse.Namespace) -> Grammar | None:
    """The chosen grammar. Raises UsageError and GrammarError."""
    from edgespec.grammar import specification

    names = [name for name in ("grammar", "json_schema") if name in args]
    if not names:
        return None
    specification.check_installed()
    if len(names) > 1:
        raise UsageError("give either --grammar or --json-schema, not both")
    text = text_of(args, names[0], 4 * specification.MAX_CHARACTERS) or ""
    is_grammar = names[0] == "grammar"
    return specification.lark_grammar(text) if is_grammar else specification.json_schema(text)
