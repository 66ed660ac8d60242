"""OpenAI's Responses over a session that writes a script."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from scripted import TOOL_CALL, ScriptedSession, completions, events, whole

from edgespec.completions.protocols.request_parts import RequestError
from edgespec.completions.protocols.response_replies import (
    ResponsesReply,
    StoredResponses,
    responses_error,
)
from edgespec.completions.refusals import refusal_of
from edgespec.completions.running_request import Reply
from sentences import refuses

USER = {"role": "user", "content": "Hi"}
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}


def dialect(session: ScriptedSession, max_bytes: int = 1 << 20) -> Callable[[Any], Reply]:
    return partial(ResponsesReply, completions(session), StoredResponses(max_bytes))


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "input": "Hello"} | fields


def test_a_text_is_a_message_of_the_output() -> None:
    answer = whole(dialect(ScriptedSession("Hel", "lo")), asked())
    [item] = answer["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"] == [
        {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
    ]
    assert (answer["status"], answer["created_at"]) == ("completed", 1000)
    assert answer["usage"]["input_tokens"] == 3
    assert answer["usage"]["input_tokens_details"] == {"cached_tokens": 1}
    assert answer["usage"]["total_tokens"] == 5


def test_silence_is_filled_with_events() -> None:
    """Codex ends a stream that has had only comments for 300 seconds."""
    request = dialect(ScriptedSession("Hello"))(asked(stream=True))
    told = [event for _ in range(2) for event in request.waiting()]
    told += request.failed(refusal_of(ValueError()))
    assert [event["type"].removeprefix("response.") for event in told] == [
        *("created", "in_progress", "in_progress"),
        "failed",
    ]
    assert [event["sequence_number"] for event in told] == [0, 1, 2, 3]


def test_reasoning_and_calls_are_items_of_their_own() -> None:
    session = ScriptedSession("Hm", "m</think>", "Look: ", TOOL_CALL, opens_reasoning=True)
    answer = whole(dialect(session), asked(tools=[WEATHER]))
    reasoning, message, call = answer["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hmm"}]
    assert message["content"][0]["text"] == "Look:"
    assert (call["name"], call["arguments"]) == ("weather", '{"city": "Rome"}')
    assert call["call_id"].startswith("call_")
    assert answer["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}
    assert session.tools[0]["function"]["name"] == "weather"


def test_a_text_at_its_limit_is_incomplete() -> None:
    answer = whole(dialect(ScriptedSession("a", reason="length")), asked(max_output_tokens=1))
    assert answer["status"] == answer["output"][0]["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}


def test_events_come_in_their_order() -> None:
    found = events(dialect(ScriptedSession("Hel", "lo")), asked())
    assert [one["type"].removeprefix("response.") for one in found] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [one["sequence_number"] for one in found] == list(range(10))
    assert found[3]["part"]["text"] == "" and found[7]["part"]["text"] == "Hello"
    assert found[0]["response"]["output"] == []
    assert found[-1]["response"]["output"] == [found[-2]["item"]]


def test_streamed_items_are_those_of_the_whole_answer() -> None:
    script = ("<think>Hm", "m</think>\n", "Look: ", TOOL_CALL[:30], TOOL_CALL[30:])

    def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in items]

    request = asked(tools=[WEATHER])
    streamed = events(dialect(ScriptedSession(*script)), request)
    answer = whole(dialect(ScriptedSession(*script)), request)
    assert without_ids(streamed[-1]["response"]["output"]) == without_ids(answer["output"])
    added = [one["item"]["id"] for one in streamed if one["type"].endswith("item.added")]
    done = [one["item"]["id"] for one in streamed if one["type"].endswith("item.done")]
    assert added == done and len(set(added)) == 3
    arguments = "".join(one["delta"] for one in streamed if one["type"].endswith("arguments.delta"))
    assert arguments == answer["output"][2]["arguments"]


def test_items_become_messages() -> None:
    session = ScriptedSession("a")
    items = [
        {"role": "developer", "content": "Be short."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "id": "rs", "summary": [], "content": [
            {"type": "reasoning_text", "text": "Rome?"}]},
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
        {"type": "function_call", "call_id": "d", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "sun"},
        {"type": "message", "id": "msg", "status": "completed", "role": "assistant", "content": [
            {"type": "output_text", "text": "Sun", "annotations": []}]},
    ]  # fmt: skip
    whole(dialect(session), asked(input=items, instructions="Speak Latin."))
    system, developer, user, calls, result, assistant = session.messages
    assert system == {"role": "system", "content": "Speak Latin."}
    assert developer["role"] == "developer"
    assert user == {"role": "user", "content": "Hi"}
    assert calls["reasoning_content"] == "Rome?"
    assert [call["id"] for call in calls["tool_calls"]] == ["c", "d"]
    assert result == {"role": "tool", "tool_call_id": "c", "content": "sun"}
    assert assistant == {"role": "assistant", "content": "Sun"}


def test_a_request_goes_on_from_a_response() -> None:
    session = ScriptedSession("Salve")
    its = dialect(session)
    first = whole(its, asked(instructions="Speak Latin."))
    second = whole(its, asked(input="And now?", previous_response_id=first["id"]))
    third = events(its, asked(input="Then?", previous_response_id=second["id"]))[-1]["response"]
    assert third["previous_response_id"] == second["id"]
    assert [(m["role"], m["content"]) for m in session.messages] == [
        ("user", "Hello"),
        ("assistant", "Salve"),
        ("user", "And now?"),
        ("assistant", "Salve"),
        ("user", "Then?"),
    ]


def test_a_response_that_is_not_stored_cannot_be_gone_on_from() -> None:
    its = dialect(ScriptedSession("a"))
    answer = whole(its, asked(store=False))
    with pytest.raises(RequestError) as caught:
        its(asked(previous_response_id=answer["id"]))
    refusal = refusal_of(caught.value)
    assert refusal.code == "previous_response_not_found"
    assert responses_error(refusal, "")["error"]["param"] == "previous_response_id"


@pytest.mark.parametrize(
    "items",
    [
        [
            {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*** x"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": "*** x"},
        ],
        [{"type": "web_search_call", "id": "ws", "status": "completed", "action": "*** x"}],
        [{"type": "local_shell_call_output", "call_id": "c", "output": "*** x"}],
    ],
)
def test_items_of_tools_that_others_have_are_text(items: list[Any]) -> None:
    session = ScriptedSession("a")
    whole(dialect(session), asked(input=[USER, *items, USER]))
    assert all("*** x" in message["content"] for message in session.messages[1:-1])
    assert [m["role"] for m in session.messages[1:-1]] == [
        "user" if item["type"].endswith("_output") else "assistant" for item in items
    ]


def test_a_schema_is_a_response_format() -> None:
    schema = {"type": "object"}
    text = {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}}
    session = ScriptedSession("{}")
    with pytest.raises(AttributeError) as caught:  # a script has no grammars
        whole(dialect(session), asked(text=text))
    assert caught.value.name == "constraint"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": [5]}, "input"),
        ({"input": [{"role": 1, "content": "a"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"background": True}, "background"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with refuses(RequestError) as caught:
        dialect(ScriptedSession("a"))(asked(**fields)).begin()
    error = responses_error(refusal_of(caught.value), "")["error"]
    assert error["param"] == param


def test_references_give_no_more_than_all_that_is_kept() -> None:
    stored = StoredResponses(10_000)
    stored.add("resp_1", [USER | {"content": "a" * 4000}], [])
    once = {"type": "item_reference", "id": "resp_1"}
    assert len(stored.items([once] * 2)) == 2
    with refuses(RequestError):
        stored.items([once] * 700)


def test_text_behind_a_call_and_thoughts_of_a_lost_answer_are_told_where_they_belong() -> None:
    """A template refuses a result behind a message without its call."""
    session = ScriptedSession("a")
    thoughts = [
        {"type": "reasoning", "id": f"rs{n}", "summary": [], "content": [
            {"type": "reasoning_text", "text": text}]}
        for n, text in enumerate(("Lost?", "Rome?"))
    ]  # fmt: skip
    said = {"type": "message", "role": "assistant", "content": [
        {"type": "output_text", "text": "I look.", "annotations": []}]}  # fmt: skip
    items = [
        *(USER, thoughts[0], USER, thoughts[1]),
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
        *(said, {"type": "function_call_output", "call_id": "c", "output": "sun"}),
    ]
    whole(dialect(session), asked(input=items))
    _, _, call, result = session.messages
    assert (call["content"], call["reasoning_content"]) == ("I look.", "Rome?")
    assert result["tool_call_id"] == call["tool_calls"][0]["id"]
