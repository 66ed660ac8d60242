"""Facts and tables of a report, written as JSON values and as lines of text.

Each fact stands once, with its key, its label, its value and its text. Knows no terminal.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")

GAP = "  "
INDENT = "    "
"""Begins the lines on which the columns of a row go on."""
UNKNOWN = "?"
"""Text of a value that is not known."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One row of a report."""

    key: str
    """Key of the value in JSON; empty: in text alone."""
    label: str
    """Name of the fact in text; empty: in JSON alone."""
    value: Any = None
    text: str | None = None
    """Text of the value; None writes the value itself."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A report of facts, one on a line."""

    rows: Sequence[Fact]

    def as_dict(self) -> dict[str, Any]:
        return {row.key: row.value for row in self.rows if row.key}

    def lines(self) -> list[str]:
        shown = [row for row in self.rows if row.label]
        width = max(len(row.label) for row in shown)
        return [f"{row.label:<{width}}{GAP}{_text(row.value, row.text)}" for row in shown]


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """One column of a table."""

    key: str
    """Key of its values in JSON; empty: in text alone."""
    label: str
    """Its heading in text; empty: in JSON alone."""
    value: Callable[[T], Any]
    text: Callable[[T], str] | None = None
    """Text of an item's cell; None writes the value itself."""
    is_left: bool = False
    """True for texts, which begin at the left; numbers end at the right."""


@dataclass(frozen=True, slots=True)
class Table(Generic[T]):
    """A report of items, one on a row."""

    columns: Sequence[Column[T]]
    items: Sequence[T]

    def as_list(self) -> list[dict[str, Any]]:
        return [{c.key: c.value(item) for c in self.columns if c.key} for item in self.items]

    def lines(self, width: int | None = None) -> list[str]:
        """The heading and a row for each item; columns beyond `width` follow on lines below."""
        shown = [column for column in self.columns if column.label]
        cells = [[_cell(column, item) for column in shown] for item in self.items]
        rows = [[column.label for column in shown], *cells]
        return aligned(rows, [column.is_left for column in shown], width)


def aligned(
    rows: Sequence[Sequence[str]], is_left: Sequence[bool], width: int | None = None
) -> list[str]:
    """Rows in columns, of which some begin at the left; what exceeds `width` follows below."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    bands = _bands(widths, width)
    return [
        (INDENT * (number > 0) + _row(row, widths, is_left, band)).rstrip()
        for row in rows
        for number, band in enumerate(bands)
    ]


def wrapped(text: str, width: int | None) -> str:
    """`text` with lines of at most `width` characters, broken at words; what follows a break is
    indented like the line and a little more."""
    if width is None:
        return text
    return "\n".join(part for line in text.split("\n") for part in _broken(line, width))


def _broken(line: str, width: int) -> Iterable[str]:
    if len(line) <= width or not line.strip():
        return [line]
    begins = len(line) - len(line.lstrip(" "))
    return textwrap.wrap(
        line.strip(),
        max(width, begins + 20),
        initial_indent=" " * begins,
        subsequent_indent=" " * (begins + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _bands(widths: Sequence[int], width: int | None) -> list[range]:
    """Ranges of columns that fit on a line each, in order."""
    bands, first, used = [], 0, 0
    for number, needed in enumerate(widths):
        used += needed + len(GAP)
        if width is not None and used - len(GAP) > width and number > first:
            bands.append(range(first, number))
            first, used = number, len(INDENT) + needed + len(GAP)
    return [*bands, range(first, len(widths))]


def _row(row: Sequence[str], widths: Sequence[int], is_left: Sequence[bool], band: range) -> str:
    return GAP.join(
        row[n].ljust(widths[n]) if is_left[n] else row[n].rjust(widths[n]) for n in band
    )


def _cell(column: Column[T], item: T) -> str:
    return column.text(item) if column.text else _text(column.value(item), None)


def _text(value: Any, text: str | None) -> str:
    if text is not None:
        return text
    if value is None:
        return UNKNOWN
    return f"{value:,}" if isinstance(value, int) else str(value)
