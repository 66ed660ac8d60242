"""Grammars as callers specify them; the library that compiles them is imported when needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from edgespec import extras
from edgespec.errors import GrammarError
from edgespec.grammar.schemas import rewritten, unchecked_parts, without_annotations

if TYPE_CHECKING:
    from pydantic import BaseModel

    from edgespec.grammar.matcher import GrammarCompiler
    from edgespec.ports import Vocabulary

Kind = Literal["json schema", "regular expression", "grammar"]

MAX_CHARACTERS = 16 << 10
"""Most characters of a grammar; compiling takes up to 400 bytes per character."""
LIBRARY_BYTES = 6 << 20
BYTES_PER_TOKEN, BYTES_PER_TEXT_BYTE = 200, 20
"""Memory of the library, and of a token of the vocabulary or of the bytes of its text, whichever is
more, rounded up from measured values: 3 MiB and 124 bytes with a vocabulary of 49,152, 171 bytes
with 151,936, 18 bytes for each byte of text with 262,144 tokens of 43, and 2 MiB of pieces that
Python keeps."""
GRAMMAR_BYTES = 8 << 20
"""Memory of a grammar in use: the largest takes 6 MiB for compiling and 8 MiB for matching."""
GRAMMARS_AT_ONCE = 2
"""Grammars that may be in use at once; requests with further ones wait."""
_EXTRA, _WHY = "grammar", "grammars and JSON schemas need llguidance"

JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Formatting required of JSON: models cannot fill a text with blanks, and more tokens are forced.
A schema's own `x-guidance` takes precedence."""
_STYLE = json.dumps({"x-guidance": JSON_STYLE})[1:-1]


@dataclass(frozen=True, slots=True)
class Grammar:
    """A JSON schema, a regular expression (Rust's syntax) or a Lark grammar (llguidance's)."""

    kind: Kind
    source: str
    bounds_numbers: bool = False
    """True for JSON, whose numbers are ended after so many digits as llama.cpp's."""
    unchecked_formats: tuple[str, ...] = ()
    """Formats, patterns and keywords of its schemas that are not enforced, or in part."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user about what the grammar does not enforce."""
        return tuple(
            f"the schema's {name!r} is not known here and not checked: use another keyword"
            for name in self.unchecked_formats
        )

    def __post_init__(self) -> None:
        n_characters = len(self.source) - self.source.count(_STYLE) * len(_STYLE)
        if n_characters > MAX_CHARACTERS:
            raise GrammarError(
                f"the {self.kind} has {n_characters:,} characters, more than {MAX_CHARACTERS:,}"
            )


def json_schema(schema: str | Mapping[str, Any] | type[BaseModel]) -> Grammar:
    """A grammar for JSON by a schema or a pydantic class; `{}` allows any JSON, `{"type":
    "object"}` any object.

    Raises GrammarError for an invalid schema, and UsageError if llguidance is not installed.
    """
    from_class = getattr(schema, "model_json_schema", None)
    return _checked(unchecked_schema(from_class() if from_class else schema))


def unchecked_schema(schema: Any) -> Grammar:
    """`json_schema` without the library. Raises GrammarError for what is no schema at all."""
    try:
        read = json.loads(schema if isinstance(schema, str) else json.dumps(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise GrammarError(f"the JSON schema is not JSON: {error}") from error
    if not isinstance(read, dict | bool):
        raise GrammarError('the JSON schema must be an object such as {"type": "object"}')
    try:
        source, unchecked = json.dumps(without_annotations(read)), unchecked_parts(read)
    except (TypeError, AttributeError, ValueError, RecursionError) as error:
        raise GrammarError(f"the JSON schema is wrong: {error}") from error
    return Grammar("json schema", source, True, unchecked)


def regular_expression(pattern: str) -> Grammar:
    """A grammar for text that matches `pattern` completely. Raises GrammarError."""
    return _checked(Grammar("regular expression", pattern))


def lark_grammar(source: str) -> Grammar:
    """A grammar for text that matches the rule `start` of a Lark grammar. Raises GrammarError."""
    return _checked(Grammar("grammar", source))


def from_gbnf(source: str) -> str:
    """The Lark grammar of one in llama.cpp's GBNF. Raises GrammarError."""
    with extras.needed(_EXTRA, _WHY):
        from llguidance.gbnf_to_lark import gbnf_to_lark
    try:
        return gbnf_to_lark(source)
    except Exception as error:  # the library raises many, and Exception for unknown rules
        raise GrammarError(f"the grammar is no GBNF: {error}") from error


def _checked(grammar: Grammar) -> Grammar:
    with extras.needed(_EXTRA, _WHY):
        from edgespec.grammar.matcher import check
    check(grammar)
    return grammar


def json_rules(schemas: Mapping[str, Any], start: str) -> Grammar:
    """A Lark grammar with the rules of `start`, which use a rule for each of `schemas`, by name.

    Each schema is a document of its own, with its own references. Raises GrammarError.
    """
    try:
        rules = [start]
        for name, schema in schemas.items():
            read = rewritten(schema)
            if not isinstance(read, dict):
                read = {} if read else {"not": {}}
            rules.append(f"{name}: %json {json.dumps({'x-guidance': JSON_STYLE} | read)}\n")
        formats = {name for schema in schemas.values() for name in unchecked_parts(schema)}
    except (TypeError, AttributeError, ValueError, RecursionError) as error:
        raise GrammarError(f"the JSON schema is wrong: {error}") from error
    return Grammar("grammar", "".join(rules), True, tuple(sorted(formats)))


def library_bytes(n_vocab: int, text_bytes: int) -> int:
    """Memory for structured answers besides the grammars in use, for a vocabulary of `n_vocab`
    tokens whose texts have `text_bytes` together."""
    return LIBRARY_BYTES + max(BYTES_PER_TOKEN * n_vocab, BYTES_PER_TEXT_BYTE * text_bytes)


def check_installed() -> None:
    """Raise UsageError if the library is not installed, without importing it."""
    extras.find("llguidance", _EXTRA, _WHY)


def new_compiler(vocabulary: Vocabulary, n_logits: int) -> GrammarCompiler:
    """A compiler for the tokens of one model. Raises UsageError if the library is not installed."""
    with extras.needed(_EXTRA, _WHY):
        from edgespec.grammar.matcher import GrammarCompiler
    return GrammarCompiler(vocabulary, n_logits)
