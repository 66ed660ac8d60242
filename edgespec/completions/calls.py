"""Calls of tools that were read from a text, and the JSON that they are made of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

Parameters = Mapping[str, Any] | None
"""JSON schema of a tool's arguments; None if it is unknown."""
_LONGEST_WORD = 9
"""Most characters of a word, a number's sign or an escape that the end of a text cuts in two."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Name of the called function, and its arguments as JSON."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reading:
    """Calls read at a place of a text; a list has several."""

    calls: Sequence[ToolCall]
    end: int
    """Index of the text behind them."""
    end_marks: Sequence[str] = ()
    """Marks to expect there, as others in front of the calls were opened."""


class UnfinishedCall(Exception):
    """A text ends before it is known whether it is a call."""


def no_call(is_certain: bool) -> Reading | None:
    """None for what is certainly no call; otherwise raises UnfinishedCall."""
    if not is_certain:
        raise UnfinishedCall
    return None


def json_at(text: str, at: int, is_last: bool) -> tuple[Any, int] | None:
    """The JSON value at `at` and the index behind it; None if there is none.

    Raises UnfinishedCall if the text may go on with it, unless it `is_last`.
    """
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        is_cut = error.pos >= len(text) - _LONGEST_WORD or error.msg.startswith("Unterminated")
        no_call(is_last or not is_cut)
        return None
    except (ValueError, RecursionError):
        return None


def no_number(name: str) -> NoReturn:
    """Raise ValueError for a constant such as NaN, which Python reads and JSON lacks."""
    raise ValueError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(strict=False, parse_constant=no_number)
