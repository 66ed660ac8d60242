"""Calls in the forms that models write, however the text is cut into pieces."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.completions.calls import lenient
from edgespec.completions.tool_calls import CallSplitter

STRING, INTEGER = {"type": "string"}, {"type": "integer"}
TOOLS = {
    "weather": {
        "type": "object",
        "properties": {"city": STRING, "days": INTEGER, "unit": {"enum": ["C", "F"]}},
    },
    "write": {"type": "object", "properties": {"path": STRING, "text": STRING}},
    "now": None,
}
PARIS, ROME = ("weather", {"city": "Paris"}), ("weather", {"city": "Rome"})
CODE = "```python\nprint('</tool_call>')\n```\n"
WRITE = ("write", {"path": "a.md", "text": CODE})


def as_json(call, key="arguments", **form) -> str:
    return json.dumps({"name": call[0], key: call[1]}, **form)


def fenced(text: str, language: str = "json") -> str:
    return f"```{language}\n{text}\n```"


def marked(text: str) -> str:
    return f"<tool_call>\n{text}\n</tool_call>"


def qwen(name: str, **arguments: str) -> str:
    inside = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in arguments.items())
    return f"<function={name}>\n{inside}</function>"


def glm(name: str, between: str = "\n", **arguments: str) -> str:
    inside = "".join(
        f"<arg_key>{k}</arg_key>{between}<arg_value>{v}</arg_value>{between}"
        for k, v in arguments.items()
    )
    return f"<tool_call>{name}{between}{inside}</tool_call>"


def read(text: str, cuts=(), tools=TOOLS) -> tuple[str, list[tuple[str, object]]]:
    splitter = CallSplitter(tools)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[begin:end] for begin, end in zip(places, places[1:], strict=False)]  # noqa: RUF007
    told = "".join(map(splitter.push, pieces)) + splitter.finish()
    return told, [(call.name, json.loads(call.arguments)) for call in splitter.calls]


CALLS = {
    "two objects in a fence": (fenced(f"{as_json(PARIS)}\n{as_json(ROME)}"), [PARIS, ROME]),
    "two indented objects": (
        fenced(f"{as_json(PARIS, indent=2)}\n\n{as_json(ROME, indent=2)}"),
        [PARIS, ROME],
    ),
    "an array in a fence": (fenced(f"[{as_json(PARIS)}, {as_json(ROME)}]"), [PARIS, ROME]),
    "objects with a comma between them": (
        fenced(f"{as_json(PARIS)},\n{as_json(ROME)}"),
        [PARIS, ROME],
    ),
    "two fences": (f"{fenced(as_json(PARIS))}\n{fenced(as_json(ROME))}", [PARIS, ROME]),
    "a fence in the arguments": (fenced(as_json(WRITE)), [WRITE]),
    "a fence in a fence without a language": (fenced(as_json(WRITE), ""), [WRITE]),
    "an end mark in a string": (marked(as_json(WRITE)), [WRITE]),
    "a fence without a language": (fenced(as_json(PARIS), ""), [PARIS]),
    "a fence of another language": (fenced(as_json(PARIS), "tool_call"), [PARIS]),
    "a fence without a line break": (f"```json{as_json(PARIS)}```", [PARIS]),
    "a fence without its end": (f"```json\n{as_json(PARIS)}", [PARIS]),
    "two objects between marks": (marked(f"{as_json(PARIS)}\n{as_json(ROME)}"), [PARIS, ROME]),
    "an array between marks": (marked(f"[{as_json(PARIS)}, {as_json(ROME)}]"), [PARIS, ROME]),
    "marks without an end": (
        f"<tool_call>\n{as_json(PARIS)}\n{marked(as_json(ROME))}",
        [PARIS, ROME],
    ),
    "double braces without marks, as Qwen2.5-Coder writes them, too": (
        "".join("{" + as_json(call) + "\n" for call in (PARIS, ROME)),
        [PARIS, ROME],
    ),
    "double braces, as Qwen2.5-Coder's template shows them": (
        f"{marked('{' + as_json(PARIS) + '}')}\n{marked('{' + as_json(ROME) + '}')}",
        [PARIS, ROME],
    ),
    "double braces in a fence": (fenced("{" + as_json(PARIS) + "}"), [PARIS]),
    "a brace too many in front": (marked("{" + as_json(PARIS)), [PARIS]),
    "a bracket too many": (marked(as_json(PARIS) + "}"), [PARIS]),
    "a fence between marks": (marked(fenced(as_json(PARIS))), [PARIS]),
    "marks in a fence": (fenced(marked(as_json(PARIS)), "xml"), [PARIS]),
    "a list of calls": (f"<TOOLCALL>[{as_json(PARIS)}, {as_json(ROME)}]</TOOLCALL>", [PARIS, ROME]),
    "the marks around the tools": (f"<tools>\n{as_json(PARIS)}\n</tools>", [PARIS]),
    "bare JSON": (as_json(PARIS), [PARIS]),
    "bare JSON as Llama writes it": (
        f"{as_json(PARIS, 'parameters')}; {as_json(ROME, 'parameters')}",
        [PARIS, ROME],
    ),
    "bare lines": (f"{as_json(PARIS)}\n{as_json(ROME)}\n", [PARIS, ROME]),
    "a bare array": (f"[{as_json(PARIS)}, {as_json(ROME)}]", [PARIS, ROME]),
    "OpenAI's own form": (
        json.dumps({"type": "function", "function": {"name": "weather", "arguments": PARIS[1]}}),
        [PARIS],
    ),
    "arguments as a string": (
        marked(json.dumps({"name": "weather", "arguments": '{"city": "Paris"}'})),
        [PARIS],
    ),
    "a raw line break in a string": (
        fenced('{"name": "write", "arguments": {"text": "a\nb"}}'),
        [("write", {"text": "a\nb"})],
    ),
    "no arguments": (marked('{"name": "now"}'), [("now", {})]),
    "Qwen3-Coder": (marked(qwen("weather", city="Paris")), [PARIS]),
    "Qwen3-Coder without its marks": (qwen("weather", city="Paris"), [PARIS]),
    "Qwen3-Coder, two": (
        f"{marked(qwen('weather', city='Paris'))}\n{marked(qwen('weather', city='Rome'))}",
        [PARIS, ROME],
    ),
    "two functions between marks": (
        marked(f"{qwen('weather', city='Paris')}\n{qwen('weather', city='Rome')}"),
        [PARIS, ROME],
    ),
    "marks in a parameter": (marked(qwen("write", path="a.md", text=CODE)), [WRITE]),
    "lines and blanks in a parameter": (
        marked(qwen("write", text="  a\n\n  b ")),
        [("write", {"text": "  a\n\n  b "})],
    ),
    "no parameters": (marked(qwen("now")), [("now", {})]),
    "an object between the marks of a function": (
        f"<function=weather>{json.dumps(PARIS[1])}</function>",
        [PARIS],
    ),
    "GLM": (glm("weather", city="Paris"), [PARIS]),
    "GLM on one line": (
        glm("weather", "", city="Paris", days="3"),
        [("weather", {"city": "Paris", "days": 3})],
    ),
    "GLM, two": (glm("weather", city="Paris") + "\n" + glm("weather", city="Rome"), [PARIS, ROME]),
    "GLM with an object": (marked('weather\n{"city": "Paris"}'), [PARIS]),
    "GLM without arguments": (glm("now"), [("now", {})]),
    "GLM, an end mark in a value": (glm("write", path="a.md", text=CODE), [WRITE]),
    "MiniMax": (
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Paris</parameter>\n'
        '</invoke>\n<invoke name="weather">\n<parameter name="city">Rome</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
        [PARIS, ROME],
    ),
    "MiniCPM": ('<function name="weather"><param name="city">Paris</param></function>', [PARIS]),
    "null for arguments": (marked('{"name": "now", "arguments": null}'), [("now", {})]),
    "an empty text for arguments": (fenced('{"name": "now", "parameters": ""}'), [("now", {})]),
    "the last brace left out": (marked(as_json(PARIS)[:-1]), [PARIS]),
    "two braces left out": (marked(as_json(PARIS)[:-2]), [PARIS]),
    "Python's quotes": (marked("{'name': 'weather', 'arguments': {'city': 'Paris'}}"), [PARIS]),
    "a comma too many": (
        marked('{"name": "weather", "arguments": {"city": "Paris",}}'),
        [PARIS],
    ),
    "a parameter without its end": (
        marked(
            "<function=weather>\n<parameter=city>\nParis\n<parameter=days>\n3\n</parameter>\n"
            "</function>"
        ),
        [("weather", {"city": "Paris", "days": 3})],
    ),
    "the last parameter without its end": (
        marked("<function=weather>\n<parameter=city>\nParis\n</function>"),
        [PARIS],
    ),
    "Llama 4": ('[weather(city="Paris"), weather(city="Rome")]', [PARIS, ROME]),
    "Llama 4 between its marks": (
        '<|python_start|>[weather(city="Paris"), now()]<|python_end|>',
        [PARIS, ("now", {})],
    ),
    "OLMo 3": (
        '<function_calls>\nweather(city="Paris")\nweather(city="Rome")\n</function_calls>',
        [PARIS, ROME],
    ),
    "brackets and JSON's words in Python's strings": (
        "[write(path='a)]', text=\"[it's\"), now(a=true, b=null)]",
        [("write", {"path": "a)]", "text": "[it's"}), ("now", {"a": True, "b": None})],
    ),
    "Seed": (
        "<seed:tool_call>\n<function=weather>\n<parameter=city>Paris</parameter>\n</function>\n"
        "</seed:tool_call>",
        [PARIS],
    ),
}


@pytest.mark.parametrize("form", CALLS)
def test_a_call_is_found_in_its_form(form):
    text, calls = CALLS[form]
    assert read(text) == ("", calls)


@pytest.mark.parametrize("form", CALLS)
def test_it_may_come_letter_by_letter(form):
    text, calls = CALLS[form]
    assert read(text, range(len(text))) == ("", calls)


@pytest.mark.parametrize("form", sorted(CALLS.keys() - {"a fence without its end"}))
def test_text_around_it_stays(form):
    text, calls = CALLS[form]
    before, after = "I look: see `x`.", "Done, thank you."
    whole = f"{before}\n{text}\n{after}"
    assert read(whole) == read(whole, range(len(whole))) == (before + after, calls)


@pytest.mark.parametrize("before", ["I look: ", "Sure, ", "(1) ", "I look.\n\n"])
def test_bare_json_may_follow_text_in_its_line(before):
    assert read(before + as_json(PARIS)) == (before.rstrip(), [PARIS])


NO_CALLS = [
    "a {b} [c](d) {} [] [1, 2] ```x``` <b>",
    fenced("print({'name': 1})\n", "python"),
    fenced('x = {"name": "now", "arguments": {}}', "python"),
    fenced('{"city": "Paris"}') + "\nSee above.",
    '{"city": "Paris", "days": 3}',
    '{"name": "Paris", "arguments": {"name": "now", "arguments": {}}}',
    '{"a": {"name": "now", "arguments": {}}}',
    '[1, {"name": "now", "arguments": {}}]',
    'f({"name": "now", "arguments": {}})',
    'Write `{"name": "now", "arguments": {}}` to ask.',
    '{"name": "now"}',
    '{"name": "now", "arguments": ',
    'Write \'{"name": "now", "arguments": {}}\' there.',
    'Write "{\'name\': 1}" or “{"name": "now", "arguments": {}}”.',
    'Then {"name": "now", "arguments": {}} is written.',
    "Write `<tool_call>{...}</tool_call>`, as in '<tool_call>" + as_json(PARIS) + "</tool_call>'.",
    fenced('{"name": "now", "parameters": {"type": "object", "properties": {}}}'),
    fenced('{"name": "now", "input_schema": {"type": "object"}}'),
    fenced('[{"name": "now", "description": "The time.", "parameters": {}}]'),
    "[other(a=1)]",
    "[weather('Paris')]",
    "see a[now()] and [now() as it is]",
    "A list of [1, 2, now()] things.",
    json.dumps(
        {"type": "function", "function": {"name": "now", "description": "", "parameters": {}}}
    ),
    "<tool_call>no JSON</tool_call>",
    "<tool_call>now and then</tool_call>",
    "<function=other>\n</function>",
    "<function=now",
    "<parameter=city>Paris</parameter>",
    "a `b` ``",
    "{" * 3000,
    "[" * 3000,
]


@pytest.mark.parametrize("text", NO_CALLS)
def test_what_calls_nothing_stays_text(text):
    assert read(text) == read(text, range(len(text))) == (text, [])


@given(
    st.lists(
        st.sampled_from([text for text, _ in CALLS.values()] + ["a", "\n", "```", "{", "`"]),
        max_size=5,
    ),
    st.lists(st.integers(0, 600), max_size=8),
)
def test_where_the_pieces_are_cut_does_not_matter(parts, cuts):
    text = " ".join(parts)
    assert read(text, cuts) == read(text)


@given(
    st.text(alphabet='{}[]"<>`/=\n nowame:,', max_size=40), st.lists(st.integers(0, 40), max_size=5)
)
def test_any_text_may_come_in_pieces(text, cuts):
    assert read(text, cuts) == read(text)


def test_text_that_cannot_be_a_call_is_not_held_back():
    splitter = CallSplitter(TOOLS)
    assert splitter.push('Here: {"ci') == 'Here: {"ci'
    assert splitter.push('ty": [1, {"a": 2}], ') == 'ty": [1, {"a": 2}],'


def test_a_call_is_told_when_it_is_complete():
    splitter = CallSplitter(TOOLS)
    splitter.push(f"<tool_call>\n{as_json(PARIS)}")
    assert len(splitter.calls) == 1


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (STRING, "5", "5"),
        (STRING, "null", "null"),
        (INTEGER, "5", 5),
        (INTEGER, "five", "five"),
        ({"type": "number"}, "2.5", 2.5),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "True", True),
        ({"type": "array"}, '["a"]', ["a"]),
        ({"type": "array"}, "['a', True]", ["a", True]),
        ({"type": "object"}, "{'a': 1,}", {"a": 1}),
        ({"type": "array"}, "['a'", "['a'"),
        ({"type": "object"}, '{"a": [1]}', {"a": [1]}),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "5", "5"),
        ({"anyOf": [STRING, INTEGER]}, "5", 5),
        ({"anyOf": [STRING, INTEGER]}, "[5]", "[5]"),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"$ref": "#/$defs/S"}, "5", "5"),
        ({"$ref": "#/$defs/none"}, "5", 5),
        ({"$ref": "#/properties/v"}, "5", 5),
        ({"anyOf": [STRING, {"$ref": "#/properties/v"}]}, "5", 5),
        ({"anyOf": [{"$ref": "#/$defs/D0"}] * 2}, "5", 5),
        ({}, "Paris", "Paris"),
        ({}, "5", 5),
        ({}, '"Paris"', '"Paris"'),
    ],
)
def test_values_between_marks_have_the_types_of_the_schema(schema, text, value):
    doubled = {f"D{n}": {"anyOf": [{"$ref": f"#/$defs/D{n + 1}"}] * 2} for n in range(40)}
    known = {"S": STRING, "D40": INTEGER} | doubled
    parameters = {"type": "object", "properties": {"v": schema}, "$defs": known}
    for call in (marked(qwen("f", v=text)), glm("f", v=text)):
        assert read(call, tools={"f": parameters}) == ("", [("f", {"v": value})])


def test_a_long_call_is_read_in_linear_time():
    splitter = CallSplitter(TOOLS)
    splitter.push('<tool_call>{"name": "write", "arguments": {"text": "')
    for _ in range(20_000):
        assert splitter.push("word ") == ""
    splitter.push('"}}')
    assert len(splitter.calls) == 1


def test_escapes_of_pythons_notation_are_not_doubled():
    assert lenient(r"{'cmd': 'grep \\d+ \.py'}") == {"cmd": r"grep \d+ \.py"}


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_mark_behind_a_function_without_one_in_front_is_no_text(size):
    splitter = CallSplitter(TOOLS)
    called = "<function=weather>\n<parameter=city>\na\n</parameter>\n</function>"
    text = f"{called}\n</tool_call>"
    said = "".join(splitter.push(text[at : at + size]) for at in range(0, len(text), size))
    assert (said + splitter.finish(), len(splitter.calls)) == ("", 1)
