"""Conversations whose last message is continued, by the names and rules of vLLM."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("jinja2", reason="the extra `chat` is not installed")

from edgespec.chat.prompts import ChatPrompt, ChatPrompts
from edgespec.errors import ModelError
from edgespec.ports.language_model import ChatFormat

TURNS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
THINKING = TURNS.replace("m.content | trim", "m.content.split('</think>')[-1]").replace(
    "<assistant>{%", "<assistant><think>{%"
)
QUESTION = {"role": "user", "content": "Hi"}


def prompt(*messages: dict[str, Any], template: str = TURNS, **arguments: Any) -> ChatPrompt:
    prompts = ChatPrompts("m", ChatFormat(), lambda text: list(text.encode()), template)
    return prompts.prompt(messages, **arguments)


def said(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


@pytest.mark.parametrize("template", [TURNS, THINKING])
@pytest.mark.parametrize(
    "content", ["It is", "It is ", "e", "<end>", "\nIt", [{"type": "text", "text": "It is"}]]
)
def test_the_assistants_last_message_is_continued(content: Any, template: str) -> None:
    text = content if isinstance(content, str) else "It is"
    continued = prompt(QUESTION, said(content), template=template)
    begun = f"<user>Hi<end>\n<assistant>{text.lstrip() if template == TURNS else text}"
    assert continued.text == begun
    assert bytes(continued.tokens).decode() == begun


@pytest.mark.parametrize(
    ("arguments", "end"),
    [
        ({"continue_final_message": True}, "It is"),
        ({"continue_final_message": True, "add_generation_prompt": False}, "It is"),
        ({"continue_final_message": False}, "It is<end>\n<assistant>"),
        ({"add_generation_prompt": True}, "It is<end>\n<assistant>"),
        ({"add_generation_prompt": False}, "It is<end>\n"),
        ({"continue_final_message": False, "add_generation_prompt": False}, "It is<end>\n"),
    ],
)
def test_the_arguments_say_what_comes(arguments: dict[str, bool], end: str) -> None:
    continued = prompt(QUESTION, said("It is"), **arguments)
    assert continued.text == f"<user>Hi<end>\n<assistant>{end}"


def test_an_answer_without_text_or_with_calls_is_not_continued() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    for last in (said(""), said("It is") | {"tool_calls": [call]}):
        assert prompt(QUESTION, last).text.endswith("<end>\n<assistant>")


def test_a_template_that_hides_the_last_message_is_told_about() -> None:
    hides = TURNS.replace("in messages", "in messages if m.role == 'user'")
    assert prompt(QUESTION, said("It is"), template=hides).text.endswith("<end>\n<assistant>")
    with pytest.raises(ModelError):
        prompt(QUESTION, said("It is"), template=hides, continue_final_message=True)


@pytest.mark.parametrize(
    ("content", "kinds"),
    [
        ("<think>So", ["reasoning", "answer"]),
        ("<think>So</think>It", ["answer"]),
        ("It", ["answer"]),
    ],
)
def test_reasoning_that_was_begun_goes_on(content: str, kinds: list[str]) -> None:
    shown = TURNS + "{# <think> #}"
    begun = prompt(QUESTION, said(content), template=shown)
    end = "\n</think>\n\n" if len(kinds) == 2 else ""
    assert begun.closed().text == f"<user>Hi<end>\n<assistant>{content}{end}"
    splitter = begun.splitter()
    parts = [*splitter.push(" it is</think>Yes"), *splitter.finish()]
    assert [part.kind for part in parts] == kinds
