"""A call that a request asks for comes, whatever the model would like to say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from edgespec.completions.protocols.response_requests import ResponsesRequest
from edgespec.completions.request_grammars import call_grammar
from edgespec.completions.requests import ChatRequest
from edgespec.completions.writing import MessageWriter
from edgespec.errors import UsageError
from edgespec.session.session import Session
from sentences import refuses
from server_running import TEMPLATE, pair

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"enum": [1, 2]}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}
STOP = {"type": "function", "function": {"name": "stop"}}
WITH_TOOLS = "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}" + TEMPLATE


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with pair() as loaded:
        loaded.use_chat_template(WITH_TOOLS)
        yield loaded


def ask(session: Session, **fields: Any) -> Any:
    messages = [{"role": "user", "content": "1 + 2?"}]
    return session.create_chat_completion(messages, **{"max_tokens": 200} | fields)


def test_one_of_the_tools_is_called(session: Session) -> None:
    choice = ask(session, tools=[ADD, STOP], tool_choice="required", temperature=0.8, seed=1)
    (answer,) = choice["choices"]
    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"]["content"] is None
    (call,) = answer["message"]["tool_calls"]
    assert call["function"]["name"] in {"add", "stop"}


def test_the_named_one_is_called_by_its_schema(session: Session) -> None:
    choice = {"type": "function", "function": {"name": "add"}}
    (answer,) = ask(session, tools=[STOP, ADD], tool_choice=choice)["choices"]
    (call,) = answer["message"]["tool_calls"]
    assert call["function"]["name"] == "add"
    arguments = json.loads(call["function"]["arguments"])
    assert set(arguments) == {"a", "b"}
    assert arguments["b"] in {1, 2}


@pytest.mark.parametrize("name", ["add", "stop"])
def test_one_of_the_allowed_ones_is_called(session: Session, name: str) -> None:
    named = [{"type": "function", "function": {"name": name}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": named}}
    (answer,) = ask(session, tools=[STOP, ADD], tool_choice=choice)["choices"]
    (call,) = answer["message"]["tool_calls"]
    assert call["function"]["name"] == name


def test_only_the_allowed_ones_are_shown_where_none_need_be_called(session: Session) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [STOP]}}
    request = ChatRequest.parse({"messages": [], "tools": [STOP, ADD], "tool_choice": choice})
    assert request.offered_tools == [STOP]
    assert request.required_tools is None
    choice["allowed_tools"]["tools"] = [{"type": "function", "function": {"name": "other"}}]
    with pytest.raises(UsageError, match="other"):
        ask(session, tools=[STOP, ADD], tool_choice=choice)


def test_responses_name_the_allowed_ones(session: Session) -> None:
    named = {"type": "function", "name": "stop"}
    choice = {"type": "allowed_tools", "mode": "required", "tools": [named]}
    tools = [named, {"type": "function", "name": "add"}]
    asked = {"model": "pair", "input": "Stop", "tools": tools, "tool_choice": choice}
    request = ResponsesRequest.parse(asked)
    chat = request.chat_request(request.all_items)
    assert [tool["function"]["name"] for tool in chat.required_tools or ()] == ["stop"]
    assert len(chat.offered_tools or ()) == 2


def test_a_stream_has_the_call_too(session: Session) -> None:
    chunks = list(ask(session, tools=[ADD], tool_choice="required", stream=True))
    calls = [call for c in chunks for call in c["choices"][0]["delta"].get("tool_calls", ())]
    assert [call["function"].get("name") for call in calls] == ["add", *[None] * (len(calls) - 1)]
    assert len(calls) > 2
    assert set(json.loads("".join(call["function"]["arguments"] for call in calls))) == {"a", "b"}
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "x"}}},
        {"tools": [{"type": "function"}], "tool_choice": "required"},
    ],
)
def test_what_cannot_be_asked_for_is_refused(session: Session, fields: dict[str, Any]) -> None:
    with refuses(UsageError):
        ask(session, **fields)


@pytest.mark.parametrize("stream", [False, True])
def test_a_template_with_another_form_of_calls_is_answered_by_one_in_json(
    session: Session, stream: bool
) -> None:
    session.use_chat_template("{{ tools | tojson }} [TOOL_CALLS]" + TEMPLATE)
    try:
        answer = ask(session, tools=[STOP, ADD], tool_choice="required", stream=stream)
        if stream:
            deltas = [chunk["choices"][0]["delta"] for chunk in answer]
            assert not any(delta.get("content") for delta in deltas)
            calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
            call = {"name": calls[0]["function"]["name"]}
            call["arguments"] = "".join(call["function"]["arguments"] for call in calls)
        else:
            (choice,) = answer["choices"]
            assert choice["message"]["content"] is None
            assert choice["finish_reason"] == "tool_calls"
            call = choice["message"]["tool_calls"][0]["function"]
        assert call["name"] in {"add", "stop"}
        assert isinstance(json.loads(call["arguments"]), dict)
    finally:
        session.use_chat_template(WITH_TOOLS)


def test_a_call_may_come_instead_of_an_answer_by_a_schema(session: Session) -> None:
    """Agents that want typed answers give both: their tools were never called."""
    grammar = call_grammar([ADD], answer={"type": "object", "properties": {"sum": {"const": 5}}})
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    for text in (call, '{"sum": 5}'):
        constraint = session.constraint(grammar)
        for token in session.encode(text):
            assert constraint.allowed()[token], text
            constraint.take(token)


def test_of_several_calls_one_comes_where_one_is_asked_for() -> None:
    text = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>\n' * 2
    for size in (1, len(text)):
        message = MessageWriter(None, {"stop": None}, most_calls=1)
        for begin in range(0, len(text), size):
            message.push(text[begin : begin + size])
        message.finish()
        assert [part.kind for part in message.parts] == ["call"]
