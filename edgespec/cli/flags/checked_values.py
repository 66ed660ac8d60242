"""Validates values of flags that are no settings: numbers, files to read and to write."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from edgespec.errors import UsageError
from edgespec.files.regular import read_regular
from edgespec.settings.base import spell


def whole(flag: str, value: str | int, least: int = 0, most: float = math.inf) -> int:
    """The value as a whole number. Raises UsageError."""
    text = str(value)
    if text.isascii() and text.isdecimal() and least <= int(text) <= most:
        return int(text)
    limits = f"{least:,} or more" if most == math.inf else f"from {least:,} to {most:,}"
    raise UsageError(f"{flag} {text}: it must be a whole number {limits}")


def number(flag: str, value: str | float, least: float, most: float) -> float:
    """The value as a number. Raises UsageError."""
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if least <= found <= most:
        return found
    raise UsageError(f"{flag} {value}: it must be a number from {least:,} to {most:,}")


def read_text(flag: str, path: Path, max_bytes: int) -> str:
    """The text of a UTF-8 file. Raises UsageError."""
    try:
        return read_regular(path, max_bytes).decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{flag} {path}: not UTF-8 at byte {error.start}") from error


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
