"""LiteLLM, as agents and proxies use it."""

from functools import partial

import litellm
from checks import LONG, MODEL, PARIS, URL, raised, run
from pydantic import BaseModel

ASK = [{"role": "user", "content": PARIS}]
SERVER = {"model": f"openai/{MODEL}", "api_base": URL, "api_key": "none", "num_retries": 0}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/City"}},
            "required": ["city"],
            "$defs": {"City": {"enum": ["Paris", "Rome"]}},
        },
    },
}


class Town(BaseModel):
    name: str
    inhabitants: int


def check_chat():
    answer = litellm.completion(messages=ASK, max_tokens=24, temperature=0, **SERVER)
    assert "Paris" in answer.choices[0].message.content


def check_stream():
    stream = litellm.completion(messages=ASK, max_tokens=24, temperature=0, stream=True, **SERVER)
    assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def check_schema():
    answer = litellm.completion(messages=ASK, response_format=Town, max_tokens=60, **SERVER)
    Town.model_validate_json(answer.choices[0].message.content)


def check_required_call():
    answer = litellm.completion(
        messages=ASK, tools=[TOOL], tool_choice="required", max_tokens=60, **SERVER
    )
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.arguments in ('{"city": "Paris"}', '{"city": "Rome"}')


def check_overflow_is_its_own_error():
    messages = [{"role": "user", "content": LONG}]
    for streams in (False, True):
        ask = partial(litellm.completion, messages=messages, stream=streams, **SERVER)
        raised(litellm.ContextWindowExceededError, ask)


def check_overflow_of_a_text_is_its_own_error():
    server = SERVER | {"model": f"text-completion-openai/{MODEL}"}
    ask = partial(litellm.text_completion, prompt=LONG, max_tokens=5, **server)
    raised(litellm.ContextWindowExceededError, ask)


run(globals())
