"""The official clients of Responses and of Anthropic's messages, against the embedded pair."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import pytest

from edgespec.server.guarding import Guard
from edgespec.session.session import Session
from server_running import TEMPLATE, serving

if TYPE_CHECKING:
    import anthropic  # two seconds each, in every process that collects tests
    import openai

KEY = "secret"
CALLS = "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}" + TEMPLATE
"""A template that is known to write calls between marks."""
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 5}},
    "required": ["n"],
}
TURN = {"role": "user", "content": "the moon"}


@pytest.fixture(scope="module")
def address(session: Session) -> Iterator[str]:
    session.use_chat_template(CALLS)
    with serving(session, Guard("127.0.0.1", KEY)) as running:
        yield running
    session.use_chat_template(TEMPLATE)


@pytest.fixture(scope="module")
def gpt(address: str) -> Iterator[openai.OpenAI]:
    import openai

    with openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def claude(address: str) -> Iterator[anthropic.Anthropic]:
    import anthropic

    with anthropic.Anthropic(base_url=address, api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def messages(address: str) -> Iterator[httpx.Client]:
    """Sends and reads what Anthropic's client would, without the three seconds of importing it."""
    with httpx.Client(base_url=address, headers={"x-api-key": KEY}, timeout=60) as client:
        yield client


@pytest.mark.slow
def test_the_three_protocols_give_one_text(gpt: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    chat = gpt.chat.completions.create(model="pair", messages=[TURN], max_tokens=20)
    response = gpt.responses.create(model="pair", input="the moon", max_output_tokens=20)
    message = claude.messages.create(model="pair", messages=[TURN], max_tokens=20)
    text = chat.choices[0].message.content
    assert text and response.output_text == message.content[0].text == text
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert response.status == "incomplete" and message.stop_reason == "max_tokens"


def test_a_streamed_response_is_the_whole_one(gpt: openai.OpenAI) -> None:
    whole = gpt.responses.create(model="pair", input="the moon", max_output_tokens=20)
    with gpt.responses.stream(model="pair", input="the moon", max_output_tokens=20) as stream:
        events = list(stream)
    deltas = [one.delta for one in events if one.type == "response.output_text.delta"]
    assert events[-1].type == "response.incomplete"
    final = events[-1].response
    assert "".join(deltas) == final.output_text == whole.output_text
    assert final.usage.output_tokens == whole.usage.output_tokens


@pytest.mark.slow
def test_a_streamed_message_is_the_whole_one(claude: anthropic.Anthropic) -> None:
    asked = {"model": "pair", "messages": [TURN], "max_tokens": 20}
    whole = claude.messages.create(**asked)
    with claude.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.stop_reason == "max_tokens"


@pytest.mark.slow
def test_a_schema_holds(gpt: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    text = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}
    response = gpt.responses.create(model="pair", input="n", text=text, max_output_tokens=50)
    assert json.loads(response.output_text)["n"] in range(1, 6)
    output = {"format": {"type": "json_schema", "schema": SCHEMA}}
    message = claude.messages.create(
        model="pair", messages=[TURN], max_tokens=50, output_config=output
    )
    assert json.loads(message.content[0].text)["n"] in range(1, 6)


@pytest.mark.slow
def test_a_required_call_is_a_call(gpt: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    function = {"type": "function", "name": "count", "parameters": SCHEMA, "strict": True}
    asked = {"model": "pair", "input": "n", "tools": [function], "tool_choice": "required"}
    [call] = gpt.responses.create(**asked).output
    assert call.type == "function_call" and json.loads(call.arguments)["n"] in range(1, 6)
    with gpt.responses.stream(**asked) as stream:
        [streamed] = stream.get_final_response().output
    assert streamed.arguments == call.arguments
    tool = {"name": "count", "input_schema": SCHEMA}
    any_tool = {"type": "any"}
    asked = {"model": "pair", "messages": [TURN], "tools": [tool], "tool_choice": any_tool}
    message = claude.messages.create(max_tokens=60, **asked)
    assert message.stop_reason == "tool_use" and message.content[0].input["n"] in range(1, 6)
    with claude.messages.stream(max_tokens=60, **asked) as events:
        assert events.get_final_message().content[0].input == message.content[0].input


@pytest.mark.slow
def test_errors_are_those_of_the_protocol(
    gpt: openai.OpenAI, claude: anthropic.Anthropic, address: str
) -> None:
    import anthropic
    import openai

    image = {"type": "input_image", "image_url": "data:image/png;base64,AA"}
    with pytest.raises(openai.BadRequestError) as refused:
        gpt.responses.create(model="pair", input=[{"role": "user", "content": [image]}])
    assert refused.value.param == "input" and "text only" in refused.value.message
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    with pytest.raises(openai.BadRequestError) as refused:
        gpt.chat.completions.create(model="pair", messages=[{"role": "user", "content": [part]}])
    assert refused.value.type == "invalid_request_error" and "text" in refused.value.message
    source = {"type": "base64", "media_type": "image/png", "data": "AA"}
    picture = {"role": "user", "content": [{"type": "image", "source": source}]}
    with pytest.raises(anthropic.BadRequestError) as error:
        claude.messages.create(model="pair", messages=[picture], max_tokens=4)
    assert error.value.body["type"] == "error"
    assert error.value.body["error"]["type"] == "invalid_request_error"
    assert error.value.body["request_id"] == error.value.response.headers["x-request-id"]
    with (
        pytest.raises(anthropic.AuthenticationError) as unknown,
        anthropic.Anthropic(base_url=address, api_key="wrong", max_retries=0) as stranger,
    ):
        stranger.messages.create(model="pair", messages=[TURN], max_tokens=4)
    assert unknown.value.body["error"]["type"] == "authentication_error"
    right = {"Authorization": f"Bearer {KEY}"}
    body = httpx.post(f"{address}/v1/messages/count_tokens", headers=right, content=b"{").json()
    assert body["type"] == "error"


@pytest.mark.slow
def test_a_prompt_that_is_too_long_is_refused_by_both(
    gpt: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    import anthropic
    import openai

    long = "word " * 5000
    with pytest.raises(openai.BadRequestError) as refused:
        gpt.responses.create(model="pair", input=long)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.create(
            model="pair", messages=[{"role": "user", "content": long}], max_tokens=4
        )
