"""Anthropic's messages over a session that writes a script."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from scripted import TOOL_CALL, ScriptedSession, completions, events, whole

from edgespec.completions.protocols.message_replies import MessagesReply, messages_error
from edgespec.completions.protocols.message_requests import MessagesRequest
from edgespec.completions.protocols.request_parts import RequestError
from edgespec.completions.refusals import Refusal, refusal_of
from edgespec.completions.running_request import Reply
from sentences import refuses

WEATHER = {
    "name": "weather",
    "description": "The weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
HELLO = [{"role": "user", "content": "Hello"}]


def dialect(session: ScriptedSession) -> Callable[[Any], Reply]:
    return partial(MessagesReply, completions(session))


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 50, "messages": HELLO} | fields


def test_a_text_is_a_block() -> None:
    answer = whole(dialect(ScriptedSession("Hel", "lo")), asked())
    assert answer["content"] == [{"type": "text", "text": "Hello", "citations": None}]
    assert (answer["type"], answer["role"], answer["stop_reason"]) == (
        "message",
        "assistant",
        "end_turn",
    )
    usage = answer["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (2, 1)
    assert usage["output_tokens"] == 2


def test_thinking_and_tools_are_blocks_of_their_own() -> None:
    session = ScriptedSession("Hmm</think>", "Look: ", TOOL_CALL, opens_reasoning=True)
    answer = whole(dialect(session), asked(tools=[WEATHER]))
    thinking, text, call = answer["content"]
    assert thinking == {"type": "thinking", "thinking": "Hmm", "signature": "unsigned"}
    assert text["text"] == "Look:"
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "weather", {"city": "Rome"})
    assert answer["stop_reason"] == "tool_use"
    assert session.tools[0]["function"]["parameters"] == WEATHER["input_schema"]


@pytest.mark.parametrize(
    ("script", "reason", "sequence"),
    [
        ({"reason": "stop"}, "end_turn", None),
        ({"reason": "length"}, "max_tokens", None),
        ({"reason": "context"}, "model_context_window_exceeded", None),
        ({"reason": "stop", "stopped_by": "END"}, "stop_sequence", "END"),
    ],
)
def test_the_reason_of_the_end_is_told(
    script: dict[str, Any], reason: str, sequence: str | None
) -> None:
    session = ScriptedSession("a", **script)
    answer = whole(dialect(session), asked(stop_sequences=["END", "STOP"]))
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)
    assert session.requests[0].stop == ("END", "STOP")
    last = events(dialect(session), asked())[-2]
    assert last["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


def test_events_come_in_their_order() -> None:
    script = ("<think>Hm", "m</think>\n", "Look: ", TOOL_CALL[:30], TOOL_CALL[30:])
    found = events(dialect(ScriptedSession(*script)), asked(tools=[WEATHER]))
    kinds = [one["type"] for one in found]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    assert found[0]["message"]["usage"]["input_tokens"] == 3
    blocks = [(one["type"][14:], one["index"]) for one in found[1:-2]]
    order = [pair for n, pair in enumerate(blocks) if n == 0 or pair != blocks[n - 1]]
    assert order == [(kind, n) for n in range(3) for kind in ("start", "delta", "stop")]
    starts = [one["content_block"] for one in found if one["type"] == "content_block_start"]
    assert [block["type"] for block in starts] == ["thinking", "text", "tool_use"]
    assert starts[2]["input"] == {}
    deltas = [one["delta"] for one in found if one["type"] == "content_block_delta"]
    written = "".join(delta.get("partial_json", "") for delta in deltas)
    assert written == '{"city": "Rome"}'
    assert [delta["type"] for delta in deltas].count("signature_delta") == 1
    assert found[-2]["usage"]["output_tokens"] == 5


def test_silence_is_filled_with_pings() -> None:
    assert [*dialect(ScriptedSession("a"))(asked(stream=True)).waiting()] == [{"type": "ping"}]


def test_blocks_become_messages() -> None:
    session = ScriptedSession("a")
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {}}]},
        {"role": "user", "content": "there"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Rome?", "signature": "s"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "Look"},
            {"type": "tool_use", "id": "c", "name": "weather", "input": {"city": "Rome"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c", "content": [
                {"type": "text", "text": "sun"}]},
            {"type": "tool_result", "tool_use_id": "d", "is_error": True},
            {"type": "document", "source": {"type": "text", "data": "a page"}},
            {"type": "text", "text": "And?"}]},
    ]  # fmt: skip
    system = [{"type": "text", "text": "Be short."}, {"type": "text", "text": "Speak Latin."}]
    whole(dialect(session), asked(messages=messages, system=system))
    head, user, assistant, first, second, last = session.messages
    assert head == {"role": "system", "content": "Be short.\n\nSpeak Latin."}
    assert user == {"role": "user", "content": "Hi\n\nthere"}
    assert (assistant["content"], assistant["reasoning_content"]) == ("Look", "Rome?")
    function = assistant["tool_calls"][0]["function"]
    assert function == {"name": "weather", "arguments": '{"city": "Rome"}'}
    assert first == {"role": "tool", "tool_call_id": "c", "content": "sun"}
    assert second["content"] == ""
    assert last == {"role": "user", "content": "a page\n\nAnd?"}


@pytest.mark.parametrize(
    ("thinking", "variables"),
    [
        ({"type": "disabled"}, {"enable_thinking": False, "reasoning_effort": "none"}),
        ({"type": "enabled", "budget_tokens": 1024}, {"enable_thinking": True}),
        ({"type": "adaptive"}, {"enable_thinking": True}),
        (None, {}),
    ],
)
def test_thinking_is_the_templates(thinking: Any, variables: dict[str, Any]) -> None:
    session = ScriptedSession("a")
    whole(dialect(session), asked(thinking=thinking))
    assert session.variables == variables


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": None},
        {"max_tokens": 0},
        {"model": None},
        {"messages": []},
        {"messages": [{"role": "robot", "content": "a"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": [5]}]},
        {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
        {"messages": [{"role": "assistant", "content": [{"type": "image"}]}]},
        {"tools": [{"type": "web_search_20250305", "name": "a"}]},
        {"tools": [{"name": "a"}]},
        {"tool_choice": {"type": "tool", "name": "b"}, "tools": [WEATHER]},
        {"tool_choice": {"type": "any"}},
        {"mcp_servers": [{}]},
        {"temperature": 1.5},
        {"max_token": 1},
    ],
)
def test_what_cannot_be_had_is_refused(fields: dict[str, Any]) -> None:
    with refuses(RequestError):
        dialect(ScriptedSession("a"))(asked(**fields)).begin()


def test_what_other_servers_tools_did_is_told_as_text() -> None:
    found = {"type": "web_search_result", "url": "u", "encrypted_content": "e"}
    blocks = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": [found]},
    ]
    source = {"type": "search_result", "title": "Sky", "source": "s", "content": [
        {"type": "text", "text": "It is green."}
    ]}  # fmt: skip
    turns = [
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": [source]},
    ]
    one, two = MessagesRequest.parse(asked(messages=turns)).chat_request().messages
    assert '[server_tool_use] {"name": "web_search", "input": {"query": "q"}}' in one["content"]
    assert '"url": "u"' in one["content"] and "encrypted" not in one["content"]
    assert two["content"] == "Sky\nIt is green."


def test_a_thread_is_refused_so_that_clients_go_on_without() -> None:
    with pytest.raises(RequestError) as caught:
        dialect(ScriptedSession("a"))(asked(thread={"type": "create"}))
    error = messages_error(refusal_of(caught.value), "")["error"]
    assert error["details"] == {
        "error_code": "thread_unsupported_request",
        "unsupported": ["thread"],
    }


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (401, "authentication_error"), (413, "request_too_large"),
     (404, "not_found_error"), (503, "overloaded_error"), (500, "api_error")],
)  # fmt: skip
def test_errors_have_the_protocols_shape(status: int, kind: str) -> None:
    body = messages_error(Refusal(status, "so", figures={"n_ctx": 4, "type": "other"}), "req_1")
    assert body == {
        "type": "error",
        "error": {"type": kind, "message": "so", "n_ctx": 4},
        "request_id": "req_1",
    }


def test_a_budget_of_thinking_is_one_of_reasoning() -> None:
    thinking = {"type": "enabled", "budget_tokens": 7}
    fields = MessagesRequest.parse(asked(thinking=thinking)).chat_request()
    assert fields.reasoning_budget == 7


def test_a_call_that_a_stop_sequence_cut_off_is_not_to_be_made() -> None:
    pieces = (TOOL_CALL[:35], TOOL_CALL[35:50])
    session = ScriptedSession(*pieces, reason="stop", stopped_by="END")
    answer = whole(dialect(session), asked(tools=[WEATHER], stop_sequences=["END"]))
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "END")


@pytest.mark.parametrize("is_list", [False, True])
def test_what_claude_code_writes_first_anew_in_each_session_is_left_out(is_list: bool) -> None:
    """All behind it had to be read again: 19,000 tokens."""

    def messages(cch: str) -> list[Any]:
        told = f"x-anthropic-billing-header: cc_version=2.1.197.{cch}; cch={cch};"
        system: Any = [{"type": "text", "text": told}, {"type": "text", "text": "Be kind."}]
        system = system if is_list else f"{told}\nBe kind."
        return MessagesRequest.parse(asked(system=system)).chat_request().messages

    assert messages("a") == messages("b")
    assert messages("a")[0] == {"role": "system", "content": "Be kind."}
