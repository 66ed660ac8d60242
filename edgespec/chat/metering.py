"""Limits the cost of rendering a template: steps, characters and seconds.

Counts only what its methods report; knows no template language.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence, Sized
from typing import Any

from jinja2 import Undefined

from edgespec.chat.nesting import nested_size
from edgespec.errors import ModelError

MAX_STEPS = 1_000_000
"""Most loops, macros and other blocks entered by one rendering; usual templates enter a few per
message."""
MAX_CHARACTERS = 64 << 20
"""Most characters written by one rendering, including intermediate texts."""
MAX_NESTED = 16 << 20
"""Most elements and characters, including nested ones, of a value that is written or compared."""
MAX_SECONDS = 5.0
LARGEST_NUMBER = 1_000_000
"""Largest number allowed as an argument, a factor or a width."""

_WIDTH = re.compile(r"\d{5,}|%[^a-zA-Z%]*\*")
"""A field of 10,000 characters or more in a format string, or one whose width is an argument."""


class TemplateLimitError(ModelError):
    """A template exceeds a limit of its rendering."""


class Meter:
    """Counts the cost of one rendering; all methods raise TemplateLimitError above a limit."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Reset all counts for a new rendering."""
        self._steps = 0
        self._characters = 0
        self._deadline_s = time.monotonic() + MAX_SECONDS

    def step(self) -> None:
        """Count a block that was entered."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise TemplateLimitError(f"it takes more than {MAX_STEPS:,} steps: it seems to loop")
        if self._steps % 256 == 0:
            self._check_time()

    def write(self, n_characters: int) -> None:
        """Count characters, or elements of a list, that are about to be created."""
        self._characters += n_characters
        if self._characters > MAX_CHARACTERS:
            raise TemplateLimitError(f"it writes more than {MAX_CHARACTERS:,} characters")
        self._check_time()

    def shown(self, value: Any) -> None:
        """Check the size of a value that is about to be written, compared or hashed."""
        if isinstance(value, str | int | float | None):
            return
        try:
            size = nested_size(value)
        except (RecursionError, ValueError) as error:
            raise TemplateLimitError(f"it takes a value that has no end: {error}") from error
        if size > MAX_NESTED:
            raise TemplateLimitError(f"it takes a value of more than {MAX_NESTED:,} parts")
        self._check_time()

    def joined(self, left: Any, right: Any) -> None:
        """Count `left + right`, which is about to be computed."""
        if isinstance(left, Sized) and isinstance(right, Sized):
            self.write(len(left) + len(right))

    def repeated(self, left: Any, right: Any) -> None:
        """Count `left * right` of numbers or texts, which is about to be computed."""
        for one, other in ((left, right), (right, left)):
            if isinstance(one, Sized) and isinstance(other, int):
                self.write(len(one) * max(other, 0))
        self.argument(left)
        self.argument(right)

    def formatted(self, pattern: Any) -> None:
        """Check a format string that is about to be used."""
        if isinstance(pattern, str) and _WIDTH.search(pattern):
            raise TemplateLimitError("it pads a text to more than 9,999 characters")

    def called(self, name: str, subject: Any, arguments: Sequence[Any]) -> None:
        """Count a call of the method or filter `name` on `subject`, before it runs."""
        self.step()
        if name == "format":
            self.formatted(subject)
        for value in arguments:
            self.argument(value)
            if isinstance(value, tuple) or name == "format":
                self.shown(value)
        if name not in _BY_ELEMENT and not isinstance(subject, Undefined):
            self.shown(subject)
        if name in _MULTIPLY and isinstance(subject, str):
            factors = [value if isinstance(value, int) else _size(value) for value in arguments]
            self.write(max([1, *factors]) * (1 + _copies(name, subject, arguments)))
        elif name == "join":
            texts = [subject, *arguments]
            separator = max((len(text) for text in texts if isinstance(text, str)), default=0)
            parts = next((text for text in texts if isinstance(text, list | tuple)), ())
            self.write(sum(_size(part) + separator for part in parts))

    def argument(self, value: Any) -> None:
        """Check an argument that may be a size or a number of repetitions."""
        if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
            raise TemplateLimitError(f"it counts with a number above {LARGEST_NUMBER:,}")

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline_s:
            raise TemplateLimitError(f"it takes longer than {MAX_SECONDS:g} s: it seems to loop")


_BY_ELEMENT = frozenset(
    {"attr", "batch", "d", "default", "first", "get", "items", "keys", "last"}
    | {"length", "list", "map", "reject", "rejectattr", "reverse", "select", "selectattr", "slice"}
    | {"values"}
)
"""Filters and methods that use a container's elements, but not the parts of elements."""
_MULTIPLY = frozenset({"replace", "indent", "expandtabs"})


def _copies(name: str, text: str, arguments: Sequence[Any]) -> int:
    """Most occurrences of the longest argument in the result."""
    if name == "replace":
        return text.count(str(arguments[0])) if arguments else 0
    return text.count("\n") + text.count("\t")


def _size(value: Any) -> int:
    return len(value) if isinstance(value, Sized) else 1
