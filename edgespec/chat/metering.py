"""What one rendering of a template may cost: turns, characters and seconds.

Counts what it is told; it knows no template language.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence, Sized
from typing import Any

from jinja2 import Undefined

from edgespec.chat.nesting import nested_size
from edgespec.errors import ModelError

MOST_TURNS = 1_000_000
"""Of loops, macros and other blocks; a template for chat takes a few per message."""
MOST_CHARACTERS = 64 << 20
"""That one rendering may write and join, all its intermediate texts counted."""
MOST_NESTED = 16 << 20
"""Elements and characters of one value that is written out or compared with all that is in it."""
MOST_SECONDS = 5.0
LARGEST_NUMBER = 1_000_000
"""As an argument, a factor or a width."""

_WIDTH = re.compile(r"\d{5,}|%[^a-zA-Z%]*\*")
"""In a format string: a field of 10,000 characters and more, or one as wide as an argument says."""


class TemplateLimitError(ModelError):
    """A template loops, or writes more than any conversation."""


class Meter:
    """Counts one rendering; anything above a limit is a TemplateLimitError."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        """Count from zero again."""
        self._turns = 0
        self._characters = 0
        self._deadline_s = self._clock() + MOST_SECONDS

    def turn(self) -> None:
        """One more block was entered."""
        self._turns += 1
        if self._turns > MOST_TURNS:
            raise TemplateLimitError(f"it takes more than {MOST_TURNS:,} turns: it seems to loop")
        if self._turns % 256 == 0:
            self._check_time()

    def write(self, n_characters: int) -> None:
        """So many characters, or elements of a list, are about to come into being."""
        self._characters += n_characters
        if self._characters > MOST_CHARACTERS:
            raise TemplateLimitError(f"it writes more than {MOST_CHARACTERS:,} characters")
        self._check_time()

    def shown(self, value: Any) -> None:
        """`value` is about to be written out, compared or hashed, all its parts with it."""
        if isinstance(value, str | int | float | None):
            return
        try:
            size = nested_size(value)
        except (RecursionError, ValueError) as error:
            raise TemplateLimitError(f"it takes a value that has no end: {error}") from error
        if size > MOST_NESTED:
            raise TemplateLimitError(f"it takes a value of more than {MOST_NESTED:,} parts")
        self._check_time()

    def joined(self, left: Any, right: Any) -> None:
        """`left + right` is about to be computed."""
        if isinstance(left, Sized) and isinstance(right, Sized):
            self.write(len(left) + len(right))

    def repeated(self, left: Any, right: Any) -> None:
        """`left * right` is about to be computed, for numbers and for texts."""
        for one, other in ((left, right), (right, left)):
            if isinstance(one, Sized) and isinstance(other, int):
                self.write(len(one) * max(other, 0))
        self.argument(left)
        self.argument(right)

    def formatted(self, pattern: Any) -> None:
        """`pattern` is about to be filled in."""
        if isinstance(pattern, str) and _WIDTH.search(pattern):
            raise TemplateLimitError("it pads a text to more than 9,999 characters")

    def called(self, name: str, subject: Any, arguments: Sequence[Any]) -> None:
        """A method or filter `name` is about to be applied to `subject`."""
        self.turn()
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
        """`value` says how large or how many."""
        if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
            raise TemplateLimitError(f"it counts with a number above {LARGEST_NUMBER:,}")

    def _check_time(self) -> None:
        if self._clock() > self._deadline_s:
            raise TemplateLimitError(f"it takes longer than {MOST_SECONDS:g} s: it seems to loop")


_BY_ELEMENT = frozenset(
    {"attr", "batch", "d", "default", "first", "get", "items", "keys", "last"}
    | {"length", "list", "map", "reject", "rejectattr", "reverse", "select", "selectattr", "slice"}
    | {"values"}
)
"""What looks at a container's elements and not at what is in them."""
_MULTIPLY = frozenset({"replace", "indent", "expandtabs"})


def _copies(name: str, text: str, arguments: Sequence[Any]) -> int:
    """How often the longest argument may come into the result."""
    if name == "replace":
        return text.count(str(arguments[0])) if arguments else 0
    return text.count("\n") + text.count("\t")


def _size(value: Any) -> int:
    return len(value) if isinstance(value, Sized) else 1
