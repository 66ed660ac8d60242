"""Validates arguments of Python callers: returns the value, or raises UsageError with its name.

Ranges of settings are checked where they are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from operator import index
from typing import Any, TypeVar

from edgespec.errors import UsageError
from edgespec.settings.base import nearest

T = TypeVar("T")

_BYTES = (bytes, bytearray, memoryview)


def instance(name: str, value: Any, kind: type[T]) -> T:
    """`value` if it is an instance of `kind`. Raises UsageError."""
    if not isinstance(value, kind):
        raise UsageError(f"{name} must be of the type {kind.__name__}, not {_shown(value)}")
    return value


def keywords(given: Iterable[str], known: Iterable[str], others: Iterable[str] = ()) -> None:
    """Raise TypeError for a keyword that a call does not have, with the nearest that it has.

    `others` are its keywords that are checked elsewhere.
    """
    known = [*known]
    for name in given:
        if name not in known:
            hint = nearest(name, [*known, *others])
            raise TypeError(f"unexpected keyword argument {name!r}{hint}")


def callback(name: str, value: T) -> T:
    """`value` if it is callable or None. Raises UsageError."""
    if value is not None and not callable(value):
        raise UsageError(f"{name} must be a function or None, not {_shown(value)}")
    return value


def text(name: str, value: Any) -> str:
    """`value` if it is text that can be encoded. Raises UsageError."""
    if not isinstance(value, str):
        hint = ": decode them first" if isinstance(value, _BYTES) else ""
        raise UsageError(f"{name} must be text, not {_shown(value)}{hint}")
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
    if isinstance(value, _BYTES):
        raise UsageError(f"{name} is bytes: decode them to text, or give a list of token ids")
    if not isinstance(value, Iterable) or isinstance(value, Mapping | Set):
        raise UsageError(f"{name} must be text or a list of token ids, not {_shown(value)}")
    tokens = [*value]
    for kind, method in ((str, "generate_many"), (Mapping, "chat")):
        if tokens and isinstance(tokens[0], kind):
            raise UsageError(f"{name} is one text, and a list was given: `{method}` takes it")
    return [whole(f"a token of {name}", token) for token in tokens]


def whole(name: str, value: Any) -> int:
    """`value` as a whole number. Raises UsageError."""
    try:
        if not isinstance(value, bool):
            return index(value)
    except TypeError:
        pass
    raise UsageError(f"{name} must be a whole number, not {_shown(value)}")


def texts(name: str, value: Any) -> tuple[str, ...]:
    """`value` as a tuple of texts; a single text becomes one, None none. Raises UsageError."""
    if value is None:
        return ()
    if isinstance(value, str | bytes | bytearray | memoryview):
        return (text(name, value),)
    if not isinstance(value, Iterable):
        raise UsageError(f"{name} must be text or a list of texts, not {_shown(value)}")
    return tuple(text(f"{name}[{at}]", entry) for at, entry in enumerate(value))


def _shown(value: object) -> str:
    """A short representation of a value for messages."""
    shown = repr(value)
    if isinstance(value, _BYTES):
        return "bytes"
    return shown if len(shown) <= 40 else f"a {type(value).__name__}"
