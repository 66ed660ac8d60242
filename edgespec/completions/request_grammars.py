"""Grammars that requests ask for: of an answer's format, or of a call.

A required call is JSON, between marks where the template writes it so. Knows no session.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from edgespec.chat.adapting import BEGIN, END
from edgespec.completions.protocols.request_parts import RequestError
from edgespec.completions.requests import ResponseFormat
from edgespec.grammar.schemas import without_annotations
from edgespec.grammar.specification import Grammar, from_gbnf, json_rules, unchecked_schema

_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


def grammar_of(response_format: ResponseFormat | None) -> Grammar | None:
    """Grammar of a response format; None for free text. Raises RequestError and GrammarError."""
    if response_format is None or response_format.type == "text":
        return None
    if response_format.type == "json_object":
        given = response_format.schema_
        return unchecked_schema({"type": "object"} if given is None else given)
    name = {"grammar": "grammar", "regex": "pattern"}.get(response_format.type, "json_schema")
    found = getattr(response_format, name)
    if not found:
        raise RequestError(f"response_format.{name} is missing", "response_format")
    if name == "json_schema":
        return unchecked_schema(found.schema_ or {})
    if name == "grammar":
        return Grammar("grammar", from_gbnf(found) if "::=" in found else found)
    return Grammar("regular expression", found)


def call_grammar(
    tools: Sequence[Mapping[str, Any]], is_marked: bool = True, answer: Any = None
) -> Grammar:
    """Grammar of a call of one of `tools`, by their parameter schemas: an object between marks, or
    without them; or of JSON by the schema `answer`, if there is one.

    `tools` are in OpenAI's format. Raises GrammarError for unsupported schemas.
    """
    schemas: dict[str, Any] = {}
    calls = []
    for place, tool in enumerate(tools):
        name = json.dumps(tool["function"]["name"], ensure_ascii=False)
        before = json.dumps(f'{{"name": {name}, "arguments": ', ensure_ascii=False)
        schema = without_annotations(tool["function"].get("parameters") or _NO_PARAMETERS)
        same = (rule for rule, known in schemas.items() if known == schema)
        rule = next(same, f"arguments{place}")
        schemas[rule] = schema
        calls.append(f'({before} {rule} "}}")')
    begin, end = (json.dumps(f"{BEGIN}\n"), json.dumps(f"\n{END}")) if is_marked else ("", "")
    other = "" if answer is None else " | answer"
    schemas |= {} if answer is None else {"answer": answer}
    return json_rules(schemas, f"start: {begin} call {end}{other}\ncall: {' | '.join(calls)}\n")
