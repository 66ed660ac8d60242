"""Limits of rendering one conversation: processor time, characters, and the parts of a value.

Python stops no single operation on its way. So what may grow out of proportion to its arguments is
counted before it is computed, and every value is measured when it is made, shared parts as often as
they occur: a list that contains another list twice, which contains another one twice, is small in
memory and exponentially large when written or compared. Knows values, but no template language.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any, TypeVar

from edgespec.errors import ModelError

MAX_SECONDS = 5.0
"""Most processor time of one rendering."""
MAX_CHARACTERS = 64 << 20
"""Most characters written by one rendering, including intermediate texts."""
COPIES = 16
"""Characters that may be written in addition, for each character of the conversation."""
ELEMENT_CHARACTERS = 8
"""Characters that an element of a list counts as: the bytes of a pointer."""
MAX_PARTS = 1 << 20
"""Most elements of a value, including nested ones."""
MAX_DEPTH = 200
LARGEST_NUMBER = 1 << 64
"""Largest number that an operation may give."""
WIDEST_FIELD = 9999
_TOO_WIDE = re.compile(r"\d{5}|%[^a-zA-Z%]*\*|:[^{}]*\{")
"""A field of a format string that is wider, or whose width is an argument."""
GROWING = frozenset({"*", "%", "format", "indent", "join", "replace"})
"""Operators, methods and filters whose result may exceed all that they are given."""

T = TypeVar("T")


class TemplateLimitError(ModelError):
    """A template exceeds a limit of its rendering."""


class OwnList(list[Any]):
    """A list that a template wrote down, to which it may append until another value contains it."""

    is_shared = False


def measured(value: Any) -> tuple[int, int]:
    """Number of characters and elements in `value`, and the largest whole number in it.

    Raises TemplateLimitError for more than MAX_PARTS elements or MAX_DEPTH levels, which a value
    that contains itself has.
    """
    size = largest = n_parts = 0
    level = [value]
    for _ in range(MAX_DEPTH):
        n_parts += len(level)
        below: list[Any] = []
        for part in level:
            if isinstance(part, str | bytes):
                size += len(part)
            elif isinstance(part, int):
                largest = max(largest, abs(part))
            elif isinstance(part, dict | list | tuple | set | frozenset):
                below += (*part, *part.values()) if isinstance(part, dict) else part
                if isinstance(part, OwnList):
                    part.is_shared |= part is not value
                if n_parts + len(below) > MAX_PARTS:
                    raise TemplateLimitError(f"it takes a value of more than {MAX_PARTS:,} parts")
        if not below:
            return size + n_parts, largest
        level = below
    raise TemplateLimitError(f"it takes a value with more than {MAX_DEPTH} levels")


class RenderingLimits:
    """The rest that one rendering may take; all methods raise TemplateLimitError above a limit."""

    def restart(self, conversation: Any) -> None:
        """Forget the last rendering: the thread that calls renders `conversation` now."""
        self._end_s = time.thread_time() + MAX_SECONDS
        self._characters = self._most = MAX_CHARACTERS + COPIES * measured(conversation)[0]

    def check_time(self) -> None:
        """Raise for a rendering that takes too long."""
        if time.thread_time() > self._end_s:
            raise TemplateLimitError(f"it takes longer than {MAX_SECONDS:g} s: does it loop?")

    def write(self, n_characters: int) -> None:
        """Count characters that are about to be written."""
        self._characters -= n_characters
        if self._characters < 0:
            raise TemplateLimitError(f"it writes more than {MAX_CHARACTERS:,} characters")
        self.check_time()

    def made(self, value: T) -> T:
        """Count a value that was made, and return it."""
        if isinstance(value, str):
            self.write(len(value))
        elif isinstance(value, list | tuple | dict):
            self.write(ELEMENT_CHARACTERS * len(value))
            if measured(value)[0] > self._most:
                raise TemplateLimitError(f"it takes more than {MAX_CHARACTERS:,} characters")
        elif isinstance(value, int) and abs(value) > LARGEST_NUMBER:
            raise TemplateLimitError(f"it counts with a number above {LARGEST_NUMBER:,}")
        else:
            self.check_time()
        return value

    def appending(self, own: OwnList, values: Sequence[Any]) -> None:
        """Count values that are about to be appended, which no other value may multiply."""
        if own.is_shared or not all(isinstance(one, str | int) for one in values):
            raise TemplateLimitError("it appends to a list that another value contains, or a list")
        self.write(ELEMENT_CHARACTERS + measured(values)[0])

    def growing(self, name: str, operands: Sequence[Any]) -> None:
        """Check the size that an operation may give, before it is computed: all parts of the first
        operand may become as large as another one, or as its number says."""
        self.check_time()
        if name not in GROWING or all(isinstance(one, int | float) for one in operands):
            return
        first, *others = (max(measured(one)) for one in operands)
        is_format = name in ("%", "format")
        if (is_format and _TOO_WIDE.search(str(operands[0]))) or (
            first * max((WIDEST_FIELD if is_format else 1, *others)) > MAX_CHARACTERS
        ):
            raise TemplateLimitError(f"`{name}` may make more than {MAX_CHARACTERS:,} characters")
