"""Finds the text files of a corpus, by name or in folders, and reads them in pieces.

Knows no tokenizer.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgespec.errors import UsageError
from edgespec.files.regular import open_regular

PIECE_BYTES = 1 << 19
LOOK_BYTES = 1 << 13
"""Bytes at the beginning of a file that decide if it is text."""


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file that is to be indexed."""

    path: Path
    size_bytes: int
    is_named: bool
    """True for a file that the user named: a fault in it is an error, and elsewhere a reason to
    skip it."""


def text_files(paths: Sequence[Path]) -> list[TextFile]:
    """The files of `paths`, with those in folders that look like text and are not hidden.

    Raises UsageError for a path that does not exist or is no file, and if there is no text file.
    """
    found = []
    for path in paths:
        if path.is_dir():
            found += [file for file in _within(path) if _looks_like_text(file.path)]
            continue
        try:
            with open_regular(path) as file:
                found.append(TextFile(path, os.fstat(file.fileno()).st_size, True))
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror or error}") from error
    if not found:
        raise UsageError("there is no text file in these files and folders: name UTF-8 text files")
    return found


def pieces(file: TextFile) -> Iterator[str]:
    """The text of a file, split between lines into pieces of about PIECE_BYTES.

    Raises UsageError for a named file that is not UTF-8; other files end before the fault.
    """
    decode = codecs.getincrementaldecoder("utf-8")().decode
    rest = ""
    try:
        with open_regular(file.path) as opened:
            while read := opened.read(PIECE_BYTES):
                text = rest + decode(read)
                end = text.rfind("\n") + 1 or len(text)
                yield text[:end]
                rest = text[end:]
        if rest:
            yield rest
    except UnicodeDecodeError as error:
        if file.is_named:
            raise UsageError(f"{file.path} is not UTF-8: convert it first") from error
    except OSError as error:
        if file.is_named:
            raise UsageError(f"{file.path}: {error.strerror or error}") from error


def _within(folder: Path) -> Iterator[TextFile]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(parent, name)
            if not name.startswith(".") and path.is_file() and not path.is_symlink():
                yield TextFile(path, path.stat().st_size, False)


def _looks_like_text(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            start = file.read(LOOK_BYTES)
    except OSError:
        return False
    if b"\0" in start:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False
    return bool(start)
