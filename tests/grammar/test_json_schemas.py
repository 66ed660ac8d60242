"""JSON schemas as masks, on a vocabulary of single bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("llguidance", reason="the extra `grammar` is not installed")

from edgespec.completions.request_grammars import call_grammar
from edgespec.errors import GrammarError
from edgespec.grammar.matcher import GrammarCompiler
from edgespec.grammar.specification import MAX_CHARACTERS, Grammar, from_gbnf, json_schema

LARGE = (1 << 53) + 1
"""The first integer that is not exact as binary64."""
END = 256


class Bytes:
    """A vocabulary of all bytes and an end."""

    n_vocab = 257
    eog_tokens = frozenset({END})
    longest_piece_bytes = 1

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token < END else b""

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return list(text.encode())


COMPILER = GrammarCompiler(Bytes(), 257)


def fits(grammar: Grammar | dict[str, Any], text: str) -> bool:
    """True if the whole text is allowed, and its end after it."""
    if isinstance(grammar, dict):
        grammar = json_schema(grammar)
    state = COMPILER.start(grammar)
    for token in [*text.encode(), END]:
        if not state.allowed()[token]:
            return False
        if token != END:
            state.take(token)
    return True


NAMES = {"type": "object", "additionalProperties": {"enum": [1]}}
DECIMAL = {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}
LETTERS = {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (NAMES | {"propertyNames": {"type": "string"}}, '{"a": 1}', '{"a": 2}'),
        (NAMES | {"propertyNames": {"enum": ["a", "b"]}}, '{"a": 1}', '{"c": 1}'),
        (NAMES | {"propertyNames": {"pattern": "^a"}}, '{"ab": 1}', '{"b": 1}'),
        (DECIMAL, '"-12.5"', '"twelve"'),
        (LETTERS, '["b", "a"]', '["a", "a"]'),
        (LETTERS | {"minItems": 1}, '["a"]', "[]"),
        ({"type": "array", "items": {"enum": [1]}, "uniqueItems": False}, "[1, 1]", "[2]"),
    ],
)
def test_keywords_that_the_library_lacks_are_told_by_others(schema, good, bad):
    assert fits(schema, good) and not fits(schema, bad)


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        (DECIMAL, DECIMAL["pattern"]),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "uniqueItems"),
        (NAMES | {"propertyNames": {"minLength": 3}}, "propertyNames"),
    ],
)
def test_what_is_not_enforced_is_named(schema, name):
    assert json_schema({"anyOf": [schema]}).unchecked_formats == (name,)


def test_descriptions_do_not_count_against_the_size_of_a_grammar():
    described = {"type": "string", "maxLength": 5, "description": "x" * 300}
    tools = [
        {
            "function": {
                "name": f"tool_{n}",
                "description": "d",
                "parameters": closed(**{f"a{n}": described}),
            }
        }
        for n in range(60)
    ]
    assert fits(
        call_grammar(tools),
        '<tool_call>\n{"name": "tool_59", "arguments": {"a59": "b"}}\n</tool_call>',
    )
    assert json_schema(closed(**{f"a{n}": described for n in range(60)}))


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"const": LARGE}, str(LARGE)),
        ({"enum": [1 << 70, "a", 1]}, str(1 << 70)),
        ({"enum": [1 << 70, "a", 1]}, 1),
        ({"type": "integer", "enum": [-LARGE, 1]}, str(-LARGE)),
        ({"const": {"a": [LARGE]}}, {"a": [str(LARGE)]}),
        ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"const": LARGE}}}, str(LARGE)),
        (closed(n={"type": "string"}, id={"enum": [LARGE]}), {"n": "x", "id": str(LARGE)}),
        ({"type": "integer", "minimum": 0, "maximum": (1 << 64) - 1}, (1 << 64) - 1),
        ({"type": "integer", "minimum": -(1 << 63), "maximum": (1 << 63) - 1}, -(1 << 63)),
    ],
)
def test_constants_beyond_2_53_are_strings_and_bounds_go(
    schema: dict[str, Any], value: Any
) -> None:
    assert fits(schema, json.dumps(value))
    assert any("2^53" in note for note in json_schema(schema).notes)


@pytest.mark.parametrize(
    ("schema", "longest"),
    [
        ({"type": "number"}, "1." + "1" * 16),
        ({"type": "number"}, "1" * 16 + "." + "5" * 16),
        ({"type": "number"}, "1e" + "1" * 16),
        ({"type": "number", "minimum": 0}, "0." + "3" * 16),
        ({"type": "integer"}, "-" + "1" * 16),
        ({"type": "integer", "minimum": 10**17}, "1" * 18),
        ({"const": 0.12345678901234568}, "0.12345678901234568"),
        ({"type": "integer", "minimum": LARGE}, "9" * 16),
    ],
)
def test_a_number_ends_after_sixteen_digits_where_it_may(
    schema: dict[str, Any], longest: str
) -> None:
    assert fits(schema, longest)
    assert not fits(schema, longest + "1")


def test_numbers_in_any_json_end_and_digits_in_strings_do_not_count() -> None:
    assert fits({}, f'{{"{"1" * 40}": ["{"2" * 40}", {"3" * 16}]}}')
    assert fits({}, f'"\\"{"1" * 40}"')
    assert not fits({}, f'{{"a": [{"3" * 17}]}}')


@pytest.mark.parametrize("name", ["password", "byte", "uri-reference", "phone", ""])
def test_an_unknown_format_is_any_string_and_named(name: str) -> None:
    grammar = json_schema(closed(a={"type": "string", "format": name, "maxLength": 4}))
    assert fits(grammar, '{"a": "?x y"}')
    assert grammar.unchecked_formats == (name,)
    assert repr(name) in grammar.notes[0]


def test_a_known_format_is_enforced_and_a_property_called_format_is_none() -> None:
    assert not fits({"type": "string", "format": "date"}, '"today"')
    assert json_schema({"type": "string", "format": "date"}).notes == ()
    assert json_schema(closed(format={"const": "password"})).notes == ()
    assert json_schema({"const": {"format": "password"}}).notes == ()


def test_an_object_with_properties_and_nothing_else_is_closed() -> None:
    assert fits(closed(a={"type": "integer"}), '{"a": 1}')
    assert not fits(closed(a={"type": "integer"}), '{"a": 1, "b": 2}')
    assert not fits(closed(a=closed(b={})), '{"a": {"c": 1}}')
    assert not fits(closed(), '{"b": 2}')
    assert not fits({"anyOf": [closed(a={}), {"type": "null"}]}, '{"b": 2}')


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        closed(a={}) | {"additionalProperties": True},
        closed(a={}) | {"patternProperties": {"^b$": True}},
        closed(a={}) | {"required": ["b"]},
        {"allOf": [closed(a={}), closed(b={})]},
        {"allOf": [{"$ref": "#/$defs/a"}, closed(b={})], "$defs": {"a": closed(a={})}},
        closed(a={}) | {"anyOf": [closed(b={}), closed(c={})]},
    ],
)
def test_an_object_that_says_more_is_open(schema: dict[str, Any]) -> None:
    assert fits(schema, '{"a": 1, "b": 2}')


DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}


@pytest.mark.parametrize("pattern", ["^score$", "^(score|tries)$", "^score$|^tries$"])
def test_patterns_that_leave_no_further_name(pattern: str) -> None:
    schema = closed(score=DIGIT, tries={"type": "integer"}) | {
        "required": ["score"],
        "additionalProperties": False,
        "patternProperties": {pattern: {"type": "integer", "maximum": 5}},
    }
    assert fits(schema, '{"score": 3, "tries": 5}')
    assert not fits(schema, '{"score": 6}')
    assert fits(schema, '{"score": 3, "tries": 6}') == ("tries" not in pattern)


def test_a_pattern_that_leaves_names_applies_to_them_and_to_named_ones() -> None:
    schema = closed(score=DIGIT) | {"patternProperties": {"^s": {"maximum": 5, "type": "integer"}}}
    assert fits(schema, '{"score": 5, "size": 4}')
    assert not fits(schema, '{"score": 6}')
    assert not fits(schema, '{"size": 6}')


def tool(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def calls(text: str, *tools: dict[str, Any]) -> bool:
    return fits(call_grammar(tools), f"<tool_call>\n{text}\n</tool_call>")


def call(name: str, arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def cities(*names: Any) -> dict[str, Any]:
    return closed(city={"$ref": "#/$defs/City"}, next={"$ref": "#"}) | {
        "required": ["city"],
        "$defs": {"City": {"enum": list(names)}},
    }


def test_references_of_a_tool_stay_in_its_own_schema() -> None:
    tools = [tool("f", cities("Paris", "Rome")), tool("g", cities("Oslo"))]
    assert calls(call("f", {"city": "Rome", "next": {"city": "Paris"}}), *tools)
    assert calls(call("g", {"city": "Oslo"}), *tools)
    assert not calls(call("g", {"city": "Rome"}), *tools)
    assert not calls(call("f", {"city": "Rome", "next": call("f", {})}), *tools)


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": False, "minimum": 1},
        {"type": [["integer"]]},
        {"enum": 1 << 60},
        {"required": [{}], "properties": {}},
        {"properties": 1, "patternProperties": {"^a": True}},
        {"type": "array", "items": {"const": LARGE}, "minItems": "x"},
        {"type": "array", "items": {"const": LARGE}, "maxItems": True},
        {"type": "integer", "minimum": {"a": LARGE}},
        {"type": "integer", "minimum": LARGE, "maximum": float("inf")},
        {"$ref": {"a": 1}, "const": LARGE},
        {"uniqueItems": True, "items": {"enum": 5}},
        {"uniqueItems": True, "items": {"enum": [1]}, "maxItems": "a"},
        {"uniqueItems": True, "items": {"enum": [1]}, "minItems": -1},
        {"propertyNames": {"enum": 5}},
        {"propertyNames": {"pattern": []}},
        {"pattern": ["(?=x)"]},
        {"propertyNames": {"enum": ["a"]}, "properties": 3},
    ],
)
def test_keywords_with_wrong_values_are_refused(wrong: dict[str, Any]) -> None:
    """Beside a large integer, and in lists and names, they had been an unexpected error, which a
    server answers with 500."""
    for schema in (wrong, {"type": "object", "properties": {"a": wrong, "b": {"const": LARGE}}}):
        with pytest.raises(GrammarError):
            COMPILER.start(json_schema(schema))
        with pytest.raises(GrammarError):
            COMPILER.start(call_grammar([tool("f", schema)]))


def test_tools_have_large_integers_formats_and_closed_objects() -> None:
    tools = [tool("f", cities(LARGE)), tool("g", closed(a={"format": "phone", "type": "string"}))]
    large = str(LARGE)
    assert calls(call("f", {"city": large, "next": {"city": large}}), *tools)
    assert not calls(call("f", {"city": LARGE - 1}), *tools)
    assert not calls(call("g", {"b": 1}), *tools)
    assert call_grammar(tools).unchecked_formats == ("integers beyond 2^53", "phone")


def test_a_reference_to_nothing_is_refused_before_the_first_token() -> None:
    with pytest.raises(GrammarError):
        COMPILER.start(call_grammar([tool("f", closed(city={"$ref": "#/$defs/City"}))]))


def test_references_that_branch_cost_no_more_than_they_are_long() -> None:
    """Each definition uses the next one twice."""
    n = 150
    definitions = {
        f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2, "title": "x"} for i in range(n)
    }
    schema = json_schema({"const": LARGE, "$defs": definitions | {f"d{n}": {"const": LARGE}}})
    assert len(schema.source) < MAX_CHARACTERS
    assert fits(schema, f'"{LARGE}"')


@pytest.mark.parametrize("schema", ["", "{", "[" * 100_000, '{"maximum": ' + "9" * 5000 + "}"])
def test_a_schema_that_is_no_json_is_refused(schema: str) -> None:
    with pytest.raises(GrammarError):
        json_schema(schema)


@pytest.mark.parametrize(
    "source",
    [
        "root ::= foo",
        'main ::= "a"',
        'root ::= "a"{²}',
        f'root ::= "a"{{{"9" * 5000}}}',
        "::=",
        "(",
    ],
)
def test_gbnf_that_is_wrong_is_refused(source: str) -> None:
    with pytest.raises(GrammarError):
        COMPILER.start(Grammar("grammar", from_gbnf(source)))


def test_a_schema_that_is_nested_deeply_is_refused() -> None:
    nested = "[" * 2000
    for source in (nested, '{"items": ' * 900 + "{}" + "}" * 900):
        with pytest.raises(GrammarError):
            json_schema(source)
