"""Reports: rows and tables, written as JSON values and as lines of text.

Each value stands once, with its key, its label and its format. Knows no terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")

GAP = "  "
INDENT = "    "
"""Begins the lines on which the columns of a row go on."""
UNKNOWN = "?"
"""Text of a value that is not known."""


Lines: TypeAlias = str | Iterable[str]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a report: a value for programs, a text for people, or both."""

    key: str = ""
    """Key of the value in JSON; without one, a value's own keys join those of the other rows."""
    value: Any = None
    """A report or table as value is written as its lines, if nothing else is said of its text."""
    format: Callable[[Any], Lines] | Lines | None = None
    """Text of the value, or what makes it; None writes the value itself beside a label, otherwise
    nothing."""
    label: str = ""
    """Name of the value in text, in a column of its own."""

    def lines(self, margin: int, width: int | None) -> list[str]:
        """Lines of text, with labels in a column of `margin` characters."""
        if self.format is None and isinstance(self.value, Report | Table):
            return self.value.lines(width)
        text = self.format(self.value) if callable(self.format) else self.format
        if self.label:
            return [f"{self.label:<{margin}}{GAP}{_shown(self.value) if text is None else text}"]
        return [text] if isinstance(text, str) else list(text or ())


class Report:
    """The result of a command: its rows, as JSON values or as lines of text."""

    def __init__(self, *rows: Row) -> None:
        self.rows = rows

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        values: dict[str, Any] = {}
        for row in self.rows:
            value = plain(row.value)
            if row.key:
                values[row.key] = value
            elif isinstance(value, dict):
                values |= value
        return values

    def lines(self, width: int | None = None) -> list[str]:
        """Lines of text; columns of tables that exceed `width` follow on lines below."""
        margin = max((len(row.label) for row in self.rows), default=0)
        return [line for row in self.rows for line in row.lines(margin, width)]


def plain(value: Any) -> Any:
    """The JSON value of a dataclass, a path, a report or a table, and of what contains them."""
    if isinstance(value, Table):
        return value.as_list()
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """One column of a table."""

    key: str
    """Key of its values in JSON; empty: in text alone."""
    label: str = ""
    """Its heading in text; empty: in JSON alone."""
    value: Callable[[T], Any] | None = None
    """None takes an item's attribute of the name `key`."""
    format: Callable[[Any], str] | None = None
    """Text of a value; None writes the value itself."""
    is_left: bool = False
    """True for texts, which begin at the left; numbers end at the right."""

    def of(self, item: T) -> Any:
        """The item's value in this column."""
        return getattr(item, self.key) if self.value is None else self.value(item)

    def cell(self, item: T) -> str:
        """Text of the item's value."""
        value = self.of(item)
        return _shown(value) if self.format is None else self.format(value)


@dataclass(frozen=True, slots=True)
class Table(Generic[T]):
    """A report of items, one on a row."""

    columns: Sequence[Column[T]]
    items: Sequence[T]

    def as_list(self) -> list[dict[str, Any]]:
        return [{c.key: plain(c.of(item)) for c in self.columns if c.key} for item in self.items]

    def lines(self, width: int | None = None) -> list[str]:
        """The heading and a row for each item; columns beyond `width` follow on lines below."""
        shown = [column for column in self.columns if column.label]
        cells = [[column.cell(item) for column in shown] for item in self.items]
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


def _shown(value: Any) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:,}" if isinstance(value, int) else str(value)
