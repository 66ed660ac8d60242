"""Grammars of calls in the forms of templates, held against texts."""

import json

import pytest

from edgespec.completions.request_grammars import grammar_of_chat
from edgespec.completions.requests import ChatRequest
from edgespec.completions.tool_calls import CallSplitter
from edgespec.errors import GrammarError
from edgespec.grammar.specification import Grammar, new_compiler
from fake_model import FakeVocabulary

QWEN, GLM, JSON = "<tool_call><function=f><parameter=a>", "<tool_call><arg_key>", "<tool_call>"
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["C", "F"]},
        "place": {"$ref": "#/$defs/Place"},
    },
    "required": ["city"],
    "$defs": {"Place": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now"}},
]


@pytest.fixture(scope="module")
def compiler():
    letters = [bytes([byte]) for byte in range(256)]
    return new_compiler(FakeVocabulary(257, {256}, pieces=[*letters, b""]), 257)


def required(template: str, tools) -> Grammar:
    asked = {"messages": [], "tools": tools, "tool_choice": "required"}
    grammar = grammar_of_chat(ChatRequest.parse(asked), template)
    assert grammar is not None
    return grammar


def accepts(compiler, template: str, text: str, tools=TOOLS) -> bool:
    """True if `text` is a whole call by the template's grammar."""
    state = compiler.start(required(template, tools))
    for byte in text.encode():
        if not state.allowed()[byte]:
            return False
        state.take(byte)
    return bool(state.allowed()[-1])


def qwen(**arguments: str) -> str:
    inside = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in arguments.items())
    return f"<tool_call>\n<function=weather>\n{inside}</function>\n</tool_call>"


def glm(between: str, **arguments: str) -> str:
    inside = "".join(
        f"<arg_key>{k}</arg_key>{between}<arg_value>{v}</arg_value>{between}"
        for k, v in arguments.items()
    )
    return f"<tool_call>weather{between}{inside}</tool_call>"


FORMS = {
    "Qwen3-Coder": (QWEN, qwen),
    "GLM": (GLM, lambda **arguments: glm("\n", **arguments)),
    "GLM on one line": (GLM, lambda **arguments: glm("", **arguments)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "arguments",
    [
        {"city": "Paris"},
        {"city": "New\nYork <b> </parameter"},
        {"city": "Paris", "days": "3"},
        {"city": "Paris", "unit": "F"},
        {"city": ""},
        {"city": "Paris", "place": '{"x": 1}'},
    ],
)
def test_a_call_by_the_schema_is_allowed(compiler, form, arguments):
    template, write = FORMS[form]
    text = write(**arguments)
    assert accepts(compiler, template, text)
    splitter = CallSplitter({"weather": PARAMETERS})
    assert splitter.push(text) + splitter.finish() == ""
    assert list(json.loads(splitter.calls[0].arguments)) == list(arguments)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"days": "3"},
        {"city": "Paris", "days": "three"},
        {"city": "Paris", "unit": "K"},
        {"city": "Paris", "place": '{"x": "a"}'},
        {"city": "Paris", "other": "1"},
    ],
)
def test_any_other_call_is_not(compiler, form, arguments):
    template, write = FORMS[form]
    assert not accepts(compiler, template, write(**arguments))


def test_json_is_forced_only_where_the_template_writes_it(compiler):
    text = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    for template, is_json in ((JSON, True), (QWEN, False), (GLM, False)):
        assert accepts(compiler, template, text, TOOLS[1:]) == is_json


def test_what_the_form_cannot_keep_is_refused():
    tool = {"function": {"name": "f", "parameters": {"anyOf": [{"type": "object"}]}}}
    with pytest.raises(GrammarError, match="parameters of f have no properties"):
        required(QWEN, [tool])
