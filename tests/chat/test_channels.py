"""Texts in channels, however they are cut into pieces."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.chat.prompts import ChatPrompt
from edgespec.chat.reasoning import ReasoningSplitter, marks_of
from edgespec.completions.protocols.answer_parts import message_of
from edgespec.completions.writing import MessageWriter

THOUGHT = "<|channel|>analysis<|message|>Rome?<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>In Rome."
CALL = (
    "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    '{"city": "Rome"}'
)
TEXTS = {
    THOUGHT + FINAL: ("Rome?", "In Rome."),
    FINAL: ("", "In Rome."),
    "In Rome.": ("", "In Rome."),
    THOUGHT + "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>" + FINAL: (
        "Rome?",
        "I look.In Rome.",
    ),
    "<|channel|>analysis<|message|>Rome <|": ("Rome ", ""),
    "<|channel|>final<|message|>1 < 2 <b>": ("", "1 < 2 <b>"),
    "<|chan": ("", ""),
}


def split(pieces: Iterable[str]) -> tuple[str, str]:
    splitter = ReasoningSplitter(marks_of("<|channel|>analysis"))
    parts = [part for piece in pieces for part in splitter.push(piece)] + splitter.finish()
    return tuple("".join(p.text for p in parts if p.kind == k) for k in ("reasoning", "answer"))


@pytest.mark.parametrize("text", TEXTS)
def test_channels_are_told_apart(text: str) -> None:
    assert split([text]) == split(text) == TEXTS[text]


@given(st.sampled_from(sorted(TEXTS)), st.integers(0, 150), st.integers(0, 150))
def test_where_the_pieces_are_cut_does_not_matter(text: str, one: int, other: int) -> None:
    first, second = sorted((one, other))
    assert split([text[:first], text[first:second], text[second:]]) == TEXTS[text]


START, ARGUMENTS = "<|start|>assistant", '<|constrain|>json<|message|>{"city": "Rome"}<|call|>'
CALLS = [
    CALL,
    f"{START}<|channel|>analysis to=functions.weather {ARGUMENTS}",
    f"{START} to=functions.weather<|channel|>analysis {ARGUMENTS}",
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("n", [1, 7, 1000])
def test_a_call_in_a_channel_is_a_call(n: int, call: str) -> None:
    marks = marks_of("<|channel|>analysis<|message|>")
    writer = MessageWriter(ChatPrompt("", (), marks, ""), ["weather"])
    text = THOUGHT + call
    for at in range(0, len(text), n):
        writer.push(text[at : at + n])
    writer.finish()
    message = message_of(writer.parts)
    assert message["reasoning_content"] == "Rome?" and message["content"] is None
    assert message["tool_calls"][0]["function"] == {
        "name": "weather",
        "arguments": '{"city": "Rome"}',
    }


def test_gemmas_channel_is_reasoning() -> None:
    marks = marks_of("{{ '<|channel>thought\n<channel|>' }}")
    prompt = ChatPrompt("", (), marks, "")
    splitter = prompt.splitter()
    parts = splitter.push("<|channel>thought\nRome?\n<channel|>In Rome.") + splitter.finish()
    assert [(part.kind, part.text) for part in parts] == [
        ("reasoning", "Rome?"),
        ("answer", "In Rome."),
    ]
