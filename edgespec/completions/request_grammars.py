"""Grammars that requests ask for: of an answer's format, or of a call.

A required call is JSON between marks (Hermes, Qwen3), or has each argument between marks of its own
(Qwen3-Coder, GLM), as the template writes it; JSON alone for other forms. Knows no session.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from edgespec.chat.call_marks import BEGIN, END, KEY, KEY_END, VALUE, VALUE_END
from edgespec.completions.argument_types import Schema, followed, types_of
from edgespec.completions.protocols.request_parts import RequestError
from edgespec.completions.requests import ChatRequest, ResponseFormat
from edgespec.completions.tool_calls import knows_calls
from edgespec.errors import GrammarError
from edgespec.grammar.schemas import without_annotations
from edgespec.grammar.specification import (
    Grammar,
    from_gbnf,
    json_rules,
    schema_rules,
    unchecked_schema,
)

_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


class _Form(NamedTuple):
    """Rules of a call with each argument between marks; `{}` stands for a name."""

    begin: str
    end: str
    key: str
    value_end: str
    """Text behind a value."""


_QWEN = _Form(
    rf'"{BEGIN}\n<function={{}}>\n"',
    rf'"</function>\n{END}"',
    r'"<parameter={}>\n"',
    "\n</parameter>\n",
)
_GLM = _Form(
    rf'"{BEGIN}{{}}" /\n?/',
    rf'/\n?/ "{END}"',
    rf'/\n?/ "{KEY}{{}}{KEY_END}" /\n?/ "{VALUE}"',
    VALUE_END,
)


def grammar_of_chat(request: ChatRequest, template: str) -> Grammar | None:
    """Grammar required by `tool_choice`, otherwise by `response_format`; None for free text.
    `template` is the source of the chat template."""
    required = request.required_tools
    if required is None:
        return grammar_of(request.response_format)
    form = _GLM if KEY in template else _QWEN if "<function=" in template else None
    if form and knows_calls(template):
        return _tagged(form, required)
    return call_grammar(required, knows_calls(template))


def grammar_of(response_format: ResponseFormat | None) -> Grammar | None:
    """Grammar of a response format; None for free text. Raises RequestError and GrammarError."""
    if response_format is None or response_format.type == "text":
        return None
    if response_format.type == "json_object":
        given = response_format.schema_
        return unchecked_schema({"type": "object"} if given is None else given)
    if response_format.type == "json_schema":
        if response_format.json_schema is None:
            raise RequestError("response_format.json_schema is missing", "response_format")
        return unchecked_schema(response_format.json_schema.schema_)
    name = "grammar" if response_format.type == "grammar" else "pattern"
    text = getattr(response_format, name)
    if not text:
        raise RequestError(f"response_format.{name} is missing", "response_format")
    if name == "grammar":
        return Grammar("grammar", from_gbnf(text) if "::=" in text else text)
    return Grammar("regular expression", text)


def call_grammar(tools: Sequence[Mapping[str, Any]], is_marked: bool = True) -> Grammar:
    """Grammar of a call of one of `tools`, by their parameter schemas: an object between marks, or
    without them.

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
    return json_rules(schemas, f"start: {begin} call {end}\ncall: {' | '.join(calls)}\n")


def _tagged(form: _Form, tools: Sequence[Mapping[str, Any]]) -> Grammar:
    """Grammar of a call of one of `tools`, whose arguments come in the order of its schema. What a
    schema says of the text of strings besides `enum` is not enforced."""
    rules = [f"start: {' | '.join(f'call_{number}' for number in range(len(tools)))}\n"]
    for number, tool in enumerate(tools):
        rules += _call(form, f"call_{number}", tool["function"])
    return Grammar("grammar", "".join(rules))


def _call(form: _Form, rule: str, function: Mapping[str, Any]) -> Iterator[str]:
    root = function.get("parameters") or {}
    schema = followed(root, root)
    if not isinstance(schema, Mapping) or schema.keys() & {"anyOf", "oneOf", "allOf"}:
        raise GrammarError(
            f"the parameters of {function['name']} have no properties of their own, which this "
            "model's form of calls needs: give them as one object"
        )
    parts = [form.begin.replace("{}", _spelled(function["name"]))]
    for place, (key, its) in enumerate(schema.get("properties", {}).items()):
        name = f"{rule}_{place}"
        parts.append(name if key in schema.get("required", ()) else f"{name}?")
        yield f"{name}: {form.key.replace('{}', _spelled(key))} {name}_value\n"
        yield from _value(json.dumps(form.value_end), f"{name}_value", followed(its, root), root)
    yield f"{rule}: {' '.join(parts)} {form.end}\n"


def _value(end: str, rule: str, schema: Any, root: Schema) -> Iterator[str]:
    """Rules of an argument's value with the text behind it: plain text if it may be a string."""
    schema = schema if isinstance(schema, Mapping) else {}
    kinds, choices = types_of(schema, root), schema.get("enum", ())
    if kinds and "string" not in kinds:
        definitions = {name: root[name] for name in ("$defs", "definitions") if name in root}
        yield f"{rule}: {rule}_json {end}\n"
        yield schema_rules({**definitions, **schema}, f"{rule}_json")
    elif choices and all(isinstance(one, str) for one in choices):
        yield f"{rule}: ({' | '.join(map(json.dumps, choices))}) {end}\n"
    else:
        yield f"{rule}[lazy]: /(?s:.*){end[1:-1].replace('/', chr(92) + '/')}/\n"


def _spelled(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)[1:-1]
