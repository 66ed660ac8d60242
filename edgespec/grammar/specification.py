"""Grammars as callers specify them; the library that compiles them is imported when needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from edgespec import extras
from edgespec.errors import GrammarError

if TYPE_CHECKING:
    from edgespec.grammar.matcher import GrammarCompiler
    from edgespec.ports import Vocabulary

Kind = Literal["json schema", "regular expression", "grammar"]

MAX_CHARACTERS = 16 << 10
"""Most characters of a grammar; compiling takes up to 400 bytes per character."""
LIBRARY_BYTES = 6 << 20
BYTES_PER_TOKEN = 200
"""Memory of the library and of a token of the vocabulary, rounded up from measured values: 3 MiB
and 124 bytes with a vocabulary of 49,152, 171 bytes with 151,936, and 2 MiB of pieces that Python
keeps."""
GRAMMAR_BYTES = 8 << 20
"""Memory of a grammar in use: the largest takes 6 MiB for compiling and 8 MiB for matching."""
_EXTRA, _WHY = "grammar", "grammars and JSON schemas need llguidance"

JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Formatting required of JSON: models cannot fill a text with blanks, and more tokens are forced.
A schema's own `x-guidance` takes precedence."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A JSON schema, a regular expression (Rust's syntax) or a Lark grammar (llguidance's)."""

    kind: Kind
    source: str

    def __post_init__(self) -> None:
        if len(self.source) > MAX_CHARACTERS:
            raise GrammarError(
                f"the {self.kind} has {len(self.source):,} characters, more than {MAX_CHARACTERS:,}"
            )


def json_schema(schema: str | Mapping[str, Any]) -> Grammar:
    """A grammar for JSON by the schema; `{}` allows any JSON, `{"type": "object"}` any object.

    Raises GrammarError for an invalid schema.
    """
    if not isinstance(schema, str):
        try:
            schema = json.dumps(schema)
        except (TypeError, ValueError, RecursionError) as error:
            raise GrammarError(f"the JSON schema is not JSON: {error}") from error
    try:
        read = json.loads(schema)
    except (json.JSONDecodeError, RecursionError) as error:
        raise GrammarError(f"the JSON schema is not JSON: {error}") from error
    if not isinstance(read, dict | bool):
        raise GrammarError('the JSON schema must be an object such as {"type": "object"}')
    return Grammar("json schema", schema)


def regular_expression(pattern: str) -> Grammar:
    """A grammar for text that matches `pattern` completely."""
    return Grammar("regular expression", pattern)


def lark_grammar(source: str) -> Grammar:
    """A grammar for text that matches the rule `start` of a Lark grammar."""
    return Grammar("grammar", source)


def library_bytes(n_vocab: int) -> int:
    """Memory for structured answers besides the grammars in use."""
    return LIBRARY_BYTES + BYTES_PER_TOKEN * n_vocab


def check_installed() -> None:
    """Raise UsageError if the library is not installed, without importing it."""
    extras.find("llguidance", _EXTRA, _WHY)


def new_compiler(vocabulary: Vocabulary, n_logits: int) -> GrammarCompiler:
    """A compiler for the tokens of one model. Raises UsageError if the library is not installed."""
    with extras.needed(_EXTRA, _WHY):
        from edgespec.grammar.matcher import GrammarCompiler
    return GrammarCompiler(vocabulary, n_logits)
