"""Calls of tools found in a text, however it is cut into pieces."""

import json
from collections.abc import Sequence

import pytest

from edgespec.chat.prompts import ChatPrompt
from edgespec.chat.reasoning import Marks
from edgespec.completions.protocols.answer_parts import delta_of, message_of
from edgespec.completions.tool_calls import CallSplitter, ToolCall
from edgespec.completions.writing import MessageWriter

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
ADD = ToolCall("add", '{"a": 1}')


def split(text: str, cuts=()) -> tuple[str, list[ToolCall]]:
    splitter = CallSplitter(["add"])
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[begin:end] for begin, end in zip(places, places[1:], strict=False)]  # noqa: RUF007
    told = "".join(map(splitter.push, pieces)) + splitter.finish()
    return told, splitter.calls


def test_a_call_is_taken_out_of_the_text():
    assert split(f"I add.\n{CALL}") == ("I add.", [ADD])


def test_what_is_no_call_stays_text():
    for text in ("<tool_call>no JSON</tool_call>", "<tool_call>[1]</tool_call>", "a <tool"):
        assert split(text) == (text, [])


FENCED = '```json\n{\n  "name": "add",\n  "arguments": {"a": 1}\n}\n```'


def test_fenced_json_that_calls_a_tool_is_a_call():
    assert split(f"I add.\n\n{FENCED}") == ("I add.", [ADD])
    assert split(f"{FENCED}\n{CALL}") == ("", [ADD, ADD])
    assert split(FENCED.removesuffix("```")) == ("", [ADD])


def test_other_fenced_json_stays_text():
    for text in (FENCED.replace("add", "sub"), '```json\n{"a": 1}\n```', "```json\n{", "``"):
        assert split(text) == (text, [])


@pytest.fixture(autouse=True)
def _one_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda n_bytes: "1")


def writer(tools: Sequence[str] = ("add",), inside: str = "") -> MessageWriter:
    template = "<tool_call> <think>"
    prompt = ChatPrompt(
        inside, (1,), Marks("<think>", "</think>"), template, opened="<think>" * bool(inside)
    )
    return MessageWriter(prompt, tools)


def test_a_message_has_reasoning_content_and_calls():
    message = writer()
    deltas = message.push(f"<think>\nHm.\n</think>\n\nI add.{CALL}") + message.finish()
    function = {"name": "add", "arguments": '{"a": 1}'}
    call = {"id": "call_1", "type": "function", "function": function}
    assert message_of(message.parts) == {
        "content": "I add.",
        "reasoning_content": "Hm.",
        "tool_calls": [call],
    }
    assert [delta for delta in map(delta_of, deltas) if delta] == [
        {"reasoning_content": "Hm."},
        {"content": "I add."},
        {"tool_calls": [{"index": 0} | call]},
    ]
    assert json.dumps(message_of(message.parts))


def test_a_call_in_reasoning_that_is_never_closed_is_a_call():
    message = writer()
    message.push(f"<think>\nHm.\n{CALL}")
    message.finish()
    assert [part.kind for part in message.parts] == ["reasoning", "call"]
    assert message.parts[1].text == '{"a": 1}'
    quoted = writer()
    quoted.push(f"<think>\nHm.\n{CALL}</think>No.")
    quoted.finish()
    assert [part.kind for part in quoted.parts] == ["reasoning", "text"]


def test_reasoning_that_the_prompt_opened_is_told_apart():
    message = writer(inside="<assistant><think>\n")
    message.push("Hm.</think>Four.")
    message.finish()
    assert message_of(message.parts) == {"content": "Four.", "reasoning_content": "Hm."}


@pytest.mark.parametrize("n_cut", range(1, 12))
def test_an_end_mark_that_is_cut_off_is_no_text(n_cut: int):
    assert split(CALL[:-n_cut]) == ("", [ADD])
