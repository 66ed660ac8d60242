"""Validates arguments of Python callers: returns the value, or raises UsageError with its name.

Ranges of settings are checked where they are used.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from operator import index
from typing import Any, TypeVar

from edgespec.errors import UsageError

T = TypeVar("T")
_NO_LISTS = bytes, bytearray, memoryview, Mapping, Set


def instance(name: str, value: Any, kind: type[T]) -> T:
    """`value` if it is an instance of `kind`. Raises UsageError."""
    if not isinstance(value, kind):
        raise _wrong(name, f"of the type {kind.__name__}", value)
    return value


def text(name: str, value: Any) -> str:
    """`value` if it is text that can be encoded. Raises UsageError."""
    if not isinstance(value, str):
        raise _wrong(name, "text", value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{name} has half a character (a lone surrogate) at position {error.start}, which no "
            "model can read: decode its source with errors='replace'"
        ) from None
    return value


def token_ids(name: str, value: Any) -> list[int]:
    """`value` as a list of token ids. Raises UsageError."""
    if not isinstance(value, Iterable) or isinstance(value, _NO_LISTS):
        raise _wrong(name, "text or a list of token ids", value)
    tokens = [*value]
    if tokens and isinstance(tokens[0], str | Mapping):
        advice = "give one text at a time, and messages to `chat`"
        raise UsageError(f"{name} is one text, and a list was given: {advice}")
    return [whole(f"a token of {name}", token) for token in tokens]


def whole(name: str, value: Any, most: int | None = None) -> int:
    """`value` as a whole number, with `most` from 0 up to it. Raises UsageError."""
    with suppress(TypeError):
        if not isinstance(value, bool) and (most is None or 0 <= index(value) <= most):
            return index(value)
    raise _wrong(name, "a whole number" if most is None else f"between 0 and {most}", value)


def texts(name: str, value: Any) -> tuple[str, ...]:
    """`value` as a tuple of texts; a single text becomes one, None none. Raises UsageError."""
    if isinstance(value, str):
        return (text(name, value),)
    if not isinstance(value, Iterable | None):
        raise _wrong(name, "text or a list of texts", value)
    return tuple(text(f"{name}[{at}]", entry) for at, entry in enumerate(value or ()))


def _wrong(name: str, kind: str, value: object) -> UsageError:
    return UsageError(f"{name} must be {kind}, not {reprlib.repr(value)}")
