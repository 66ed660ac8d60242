"""Validates files of flags: those to read, and those to write."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgespec.errors import UsageError
from edgespec.files.named_errors import named
from edgespec.files.regular import read_regular
from edgespec.settings.base import spell


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
        raise UsageError(f"{path} cannot be written: it is a folder")
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {path.parent}")
