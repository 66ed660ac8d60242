"""Grammars that requests ask for: of an answer's format, or of calls as the template writes them.

Calls are JSON between marks (Hermes, Qwen2.5, Qwen3), or each argument between marks of its own
(Qwen3-Coder, GLM). Where the template has another form, it is JSON alone. Knows no session.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from edgespec.chat.call_marks import BEGIN, END, KEY, KEY_END, VALUE, VALUE_END
from edgespec.completions.argument_types import followed, types_of
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

Schema = Mapping[str, Any]
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class _MarkedForm:
    """Texts around a call and around each of its arguments; `{}` stands for a name."""

    begin: str
    end: str
    key: str
    value_end: str
    line_break: str = ""
    """Rule of the line breaks that some models of the family write and others do not."""


_QWEN = _MarkedForm(
    f"{BEGIN}\n<function={{}}>\n", f"</function>\n{END}", '"<parameter={}>\\n"', "\n</parameter>\n"
)
_GLM = _MarkedForm(
    f"{BEGIN}{{}}", END, f'"{KEY}{{}}{KEY_END}" line_break? "{VALUE}"', VALUE_END, "line_break?"
)


def grammar_of_chat(request: ChatRequest, template: str) -> Grammar | None:
    """Grammar required by `tool_choice`, otherwise by `response_format`; None for free text.
    `template` is the source of the chat template."""
    required = request.required_tools
    if required is None:
        return grammar_of(request.response_format)
    return call_grammar_of(template)(required)


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


def call_grammar_of(template: str) -> Callable[[Sequence[Mapping[str, Any]]], Grammar]:
    """Function that returns the grammar of a call of one of several tools in OpenAI's format."""
    if not knows_calls(template):
        return partial(call_grammar, is_marked=False)
    if KEY in template:
        return partial(_grammar, _GLM)
    if "<function=" in template and "<parameter=" in template:
        return partial(_grammar, _QWEN)
    return call_grammar


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
    begin, end = (_quoted(f"{BEGIN}\n"), _quoted(f"\n{END}")) if is_marked else ("", "")
    return json_rules(schemas, f"start: {begin} call {end}\ncall: {' | '.join(calls)}\n")


def _grammar(form: _MarkedForm, tools: Sequence[Mapping[str, Any]]) -> Grammar:
    names = [f"call_{number}" for number in range(len(tools))]
    rules = [f"start: {' | '.join(names)}"]
    for rule, tool in zip(names, tools, strict=True):
        rules += _call(form, rule, tool["function"])
    rules += ['line_break: "\\n"'] if form.line_break else []
    return Grammar("grammar", "\n".join(rules) + "\n")


def _call(form: _MarkedForm, rule: str, function: Mapping[str, Any]) -> Iterator[str]:
    """Rules of a call, with its arguments in the order of the schema."""
    name, root = function["name"], function.get("parameters") or {}
    schema = followed(root, root)
    if not isinstance(schema, Mapping) or schema.keys() & {"anyOf", "oneOf", "allOf"}:
        raise GrammarError(
            f"the parameters of {name} have no properties of their own, which this model's form of "
            "calls needs: give them as one object"
        )
    parts = [_quoted(form.begin.replace("{}", name)), form.line_break]
    for number, (key, its) in enumerate(schema.get("properties", {}).items()):
        argument = f"{rule}_{number}"
        parts.append(argument if key in schema.get("required", ()) else f"{argument}?")
        begin = form.key.replace("{}", _quoted(key)[1:-1])
        yield f"{argument}: {begin} {argument}_value {form.line_break}"
        yield from _value(form.value_end, f"{argument}_value", followed(its, root), root, key)
    yield f"{rule}: {' '.join(parts)} {_quoted(form.end)}"


def _value(end: str, rule: str, schema: Any, root: Schema, key: str) -> Iterator[str]:
    """Rules of an argument's value with the text behind it: plain text if it may be a string."""
    schema = schema if isinstance(schema, Mapping) else {}
    kinds = types_of(schema, root)
    if choices := _choices(schema, root):
        texts = [one if isinstance(one, str) else json.dumps(one) for one in choices]
        yield f"{rule}: ({' | '.join(map(_quoted, texts))}) {_quoted(end)}"
    elif kinds and "string" not in kinds:
        definitions = {name: root[name] for name in ("$defs", "definitions") if name in root}
        yield f"{rule}: {rule}_json {_quoted(end)}"
        yield schema_rules({**definitions, **schema}, f"{rule}_json")
    elif "pattern" in schema:
        raise GrammarError(
            f"the parameter {key} has a pattern, which this model's form of calls cannot keep: "
            "leave it out, or set tool_choice to auto"
        )
    else:
        length = f"{schema.get('minLength', 0)},{schema.get('maxLength', '')}"
        text = "(?s:.*)" if length == "0," else f"[^<]{{{length}}}"  # no beginning of a mark
        ending = end.replace("/", r"\/").replace("\n", r"\n")
        yield f"{rule}[lazy]: /{text}{ending}/"


def _choices(schema: Any, root: Schema) -> list[Any]:
    """The values that a schema lists; empty if it lists none."""
    schema = followed(schema, root)
    if not isinstance(schema, Mapping):
        return []
    if "const" in schema or isinstance(schema.get("enum"), list):
        return [*schema.get("enum", [schema.get("const")])]
    several = schema.get("anyOf", schema.get("oneOf"))
    found = [_choices(one, root) for one in several] if isinstance(several, list) else [[]]
    return [value for choices in found for value in choices] if all(found) else []


def _quoted(text: str) -> str:
    """Lark's spelling of `text`."""
    return json.dumps(text, ensure_ascii=False)
