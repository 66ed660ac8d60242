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


def text_or_file(args: argparse.Namespace, name: str, max_bytes: int) -> str | None:
    """The value of the flag `name`, or the text of the file that its twin with `-file` names; None
    without either. Raises UsageError."""
    flag, file = spell(name), spell(f"{name}_file")
    if f"{name}_file" not in args:
        value: str | None = getattr(args, name, None)
        return value
    if name in args:
        raise UsageError(f"give either {flag} or {file}, not both")
    return read_text(file, Path(getattr(args, f"{name}_file")), max_bytes)


def check_output(path: Path) -> None:
    """Raise UsageError for a path that cannot be written, before a long measurement starts."""
    if path.is_dir():
        raise UsageError(f"{path} cannot be written: it is a folder: name a file in it")
    if not path.parent.is_dir():
        raise UsageError(
            f"{path} cannot be written: there is no folder {path.parent}: make it, or name another "
            "file"
        )


def template_from(args: argparse.Namespace) -> str | None:
    """The chosen chat template; None leaves the model's own. Raises UsageError."""
    from edgespec.chat import prompts  # with numpy, which flags do without

    prompts.check_installed()
    from edgespec.chat import template  # noqa: F401 - here, so that its memory is planned

    return text_or_file(args, "chat_template", MAX_TEMPLATE_BYTES)


def grammar_from(args: argparse.Namespace) -> Grammar | None:
    """The chosen grammar. Raises UsageError and GrammarError."""
    from edgespec.grammar import specification

    makers = {
        "json_schema": specification.json_schema,
        "grammar": specification.lark_grammar,
        "regex": specification.regular_expression,
    }
    names = sorted(name for name in vars(args) if name.removesuffix("_file") in makers)
    if not names:
        return None
    specification.check_installed()
    if len(names) > 1:
        raise UsageError(f"give either {spell(names[0])} or {spell(names[1])}, not both")
    name = names[0].removesuffix("_file")
    return makers[name](text_or_file(args, name, 4 * specification.MAX_CHARACTERS) or "")
