"""Answers under a grammar where the template's prompt opens reasoning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from edgespec.chat.prompts import ChatPrompts
from edgespec.completions import service
from edgespec.grammar.specification import json_schema
from edgespec.ports.language_model import ChatFormat
from edgespec.session.session import Session
from server_running import TEMPLATE, pair

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": CITY}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": CITY}}
OPENS = "{% if tools %}<tool_call>{% endif %}" + TEMPLATE + "<think>\n"
TOLD = OPENS + "{% if enable_thinking is false %}No.</think>\n{% endif %}"
SHORT, LONG = {"max_tokens": 90}, {"max_tokens": 120}
"""Limits without and with room for reasoning, as the tests set it."""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with pair() as loaded, pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "MIN_ANSWER_TOKENS", 90)
        patch.setattr(service, "MIN_REASONING_TOKENS", 20)
        yield loaded


def ask(session: Session, template: str = OPENS, **fields: Any) -> Any:
    session.use_chat_template(template)
    messages = [{"role": "user", "content": "A city?"}]
    return session.create_chat_completion(messages, **SHORT | {"temperature": 0} | fields)


@pytest.mark.costly
@pytest.mark.parametrize("template", [OPENS, TOLD, OPENS.replace("<think>\n", "[THINK]")])
@pytest.mark.parametrize("fields", [SHORT, LONG])
def test_the_content_is_the_json(session: Session, template: str, fields: Any) -> None:
    (choice,) = ask(session, template, response_format=FORMAT, **fields)["choices"]
    assert choice["finish_reason"] == "stop"
    assert json.loads(choice["message"]["content"])["city"] in {"Paris", "Rome"}


@pytest.mark.parametrize("fields", [SHORT, LONG])
def test_a_required_call_is_a_call(session: Session, fields: Any) -> None:
    (choice,) = ask(session, tools=[TOOL], tool_choice="required", **fields)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["city"] in {"Paris", "Rome"}


def test_there_is_reasoning_where_the_limit_has_room(session: Session) -> None:
    (choice,) = ask(session, response_format=FORMAT, **LONG)["choices"]
    assert choice["message"]["reasoning_content"]


def test_a_stream_tells_them_apart(session: Session) -> None:
    chunks = list(ask(session, response_format=FORMAT, stream=True, **LONG))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    content = "".join(delta.get("content") or "" for delta in deltas)
    assert json.loads(content)["city"] in {"Paris", "Rome"}
    assert any("reasoning_content" in delta for delta in deltas)


def test_the_text_of_a_chat_under_a_grammar_is_the_answer(session: Session) -> None:
    session.use_chat_template(OPENS)
    messages = [{"role": "user", "content": "A city?"}]
    with session.chat(messages, grammar=json_schema(CITY), max_tokens=60) as generation:
        text = "".join(event.text for event in generation)
    assert json.loads(text)["city"] in {"Paris", "Rome"}


def prompt(source: str) -> Any:
    prompts = ChatPrompts("fake", ChatFormat(), lambda text: [ord(c) for c in text], source)
    return prompts.prompt([{"role": "user", "content": "Hello"}])


@pytest.mark.parametrize(
    ("opening", "closing"),
    [("<think>", "</think>\n\n"), ("<think>\n", "\n</think>\n\n"), ("[THINK]", "[/THINK]\n\n")],
)
def test_a_prompt_that_opens_reasoning_can_be_closed(opening: str, closing: str) -> None:
    opened = prompt("{{ messages[0].content + " + json.dumps(opening) + " }}")
    closed = opened.closed()
    assert closed.text == "".join(map(chr, closed.tokens)) == f"Hello{opening}{closing}"
    assert closed.closed() == closed


def test_a_budget_ends_reasoning_and_the_answer_follows(session: Session) -> None:
    free = ask(session, **LONG)["choices"][0]["message"]["reasoning_content"]
    answer = ask(session, reasoning={"max_tokens": 8}, **LONG)
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"] and free.startswith(message["reasoning_content"])
    assert message["content"]
    details = answer["usage"]["completion_tokens_details"]
    assert 8 < details["reasoning_tokens"] < 20


def test_a_budget_holds_under_a_grammar(session: Session) -> None:
    fields = LONG | {"response_format": FORMAT, "reasoning": {"max_tokens": 8}}
    answer = ask(session, **fields)
    assert json.loads(answer["choices"][0]["message"]["content"])["city"] in {"Paris", "Rome"}
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] < 20


@pytest.mark.parametrize("template", [OPENS, TOLD])
def test_a_budget_of_nothing_is_an_answer_at_once(session: Session, template: str) -> None:
    message = ask(session, template, reasoning={"max_tokens": 0})["choices"][0]["message"]
    assert message["content"] and "reasoning_content" not in message


def test_a_model_that_opens_reasoning_itself_has_a_budget(session: Session) -> None:
    """The answer is made to begin with the mark, which the template names and does not write."""
    template = TEMPLATE + "{#- <think> </think> -#}"
    session.use_chat_template(template)
    prompt = session.chat_prompt([{"role": "user", "content": "A city?"}])
    wrap = service.Completions(session).wrap(prompt, 40, has_grammar=False)
    assert wrap is not None and prompt.ending_tokens
    its = wrap(None)
    for token in session.encode("<think>abc"):
        its.take(token)
    assert not its.forced(1)
    for _ in range(40):
        if not its.forced(1):
            its.take(100)
    assert its.forced(50) == [*prompt.ending_tokens]
