"""What an answer has to look like, as a caller says it. Compiles nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from edgespec.errors import GrammarError

Kind = Literal["json schema", "regular expression", "grammar"]

MOST_CHARACTERS = 16 << 10
"""Compiling takes up to 400 bytes for each."""


JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""One way to write each value: no model can fill a text with blanks, and more tokens are forced. A
schema's own `x-guidance` may say otherwise."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A JSON schema, a regular expression (Rust's syntax) or a Lark grammar (llguidance's)."""

    kind: Kind
    source: str

    def __post_init__(self) -> None:
        if len(self.source) > MOST_CHARACTERS:
            raise GrammarError(
                f"the {self.kind} has {len(self.source):,} characters, more than "
                f"{MOST_CHARACTERS:,}"
            )


def json_schema(schema: str | Mapping[str, Any]) -> Grammar:
    """JSON that the schema describes; `{}` is any JSON, `{"type": "object"}` any object.

    Raises GrammarError for what is no schema.
    """
    if not isinstance(schema, str):
        try:
            schema = json.dumps(schema)
        except (TypeError, ValueError, RecursionError) as error:
            raise GrammarError(f"the JSON schema is no JSON: {error}") from error
    try:
        read = json.loads(schema)
    except (json.JSONDecodeError, RecursionError) as error:
        raise GrammarError(f"the JSON schema is no JSON: {error}") from error
    if not isinstance(read, dict | bool):
        raise GrammarError('the JSON schema must be an object such as {"type": "object"}')
    return Grammar("json schema", schema)


def regular_expression(pattern: str) -> Grammar:
    """Text that matches all of `pattern`."""
    return Grammar("regular expression", pattern)


def lark_grammar(source: str) -> Grammar:
    """Text of the grammar's rule `start`."""
    return Grammar("grammar", source)
