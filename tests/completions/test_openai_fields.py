"""Fields of OpenAI's clients: what changes nothing is taken, and errors name the field."""

from __future__ import annotations

from typing import Any

import pytest

from edgespec.completions.protocols.request_parts import RequestError
from edgespec.completions.requests import ChatRequest, CompletionRequest
from edgespec.settings.config import INT32_MAX

MESSAGES = [{"role": "user", "content": "a"}]


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest.parse({"messages": MESSAGES} | fields)


def text(**fields: Any) -> CompletionRequest:
    return CompletionRequest.parse({"prompt": "a"} | fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"modalities": ["text"]},
        {"functions": None, "function_call": None},
        {"functions": [], "function_call": "auto"},
        {"audio": None, "web_search_options": None},
        {"verbosity": "low", "prediction": {"type": "content", "content": "a"}},
        {"prompt_cache_retention": "24h", "prompt_cache_key": "k", "safety_identifier": "s"},
        {"stop": ""},
        {"stop": []},
        {"tfs_z": 1.0, "mirostat_mode": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1},
        {"typical_p": 1.0, "logits_processor": None, "stopping_criteria": None, "grammar": None},
        {"stop": None, "logit_bias": None, "tools": None, "lora": None, "samplers": None},
        {"skip_special_tokens": True, "min_tokens": 0, "length_penalty": 1.0},
        {"stream_options": {"include_usage": True}},
    ],
)
def test_what_changes_nothing_is_taken(fields: dict[str, Any]) -> None:
    assert chat(**fields).sampling_fields() == chat().sampling_fields()
    assert not chat(**fields).stop


@pytest.mark.parametrize("request_of", [ChatRequest, CompletionRequest])
def test_every_field_but_messages_and_prompt_may_be_null(request_of: type[ChatRequest]) -> None:
    required = {"messages": MESSAGES} if request_of is ChatRequest else {"prompt": "a"}
    nulls = {field.alias or name: None for name, field in request_of.model_fields.items()}
    assert request_of.parse(nulls | required) == request_of.parse(required)


def test_minus_one_is_no_limit_in_both_fields() -> None:
    assert chat(max_completion_tokens=-1).limit == INT32_MAX
    assert chat(max_completion_tokens=-1, max_tokens=5).limit == INT32_MAX


@pytest.mark.parametrize(
    "fields",
    [
        {"modalities": ["text", "audio"]},
        {"audio": {"voice": "alloy"}},
        {"functions": [{"name": "f"}]},
        {"function_call": {"name": "f"}},
        {"web_search_options": {}},
        {"tfs_z": 0.9},
        {"mirostat_mode": 2},
        {"min_tokens": 3},
    ],
)
def test_what_would_change_something_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**fields)
    assert caught.value.param == next(iter(fields))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": 3}, "messages"),
        ({"messages": [3]}, "messages.0"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tool_choice": {"function": {"name": 3}}}, "tool_choice.function.name"),
        ({"stop": 3}, "stop"),
        ({"stop": ["a", 3]}, "stop.1"),
        ({"logit_bias": {"5": "b"}}, "logit_bias.5"),
        ({"logit_bias": {"a": 1}}, "logit_bias.a"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "text", "strict": 1}}, "response_format.strict"),
        (
            {"response_format": {"type": "json_schema", "json_schema": 1}},
            "response_format.json_schema",
        ),
        ({"stream_options": {"include_usage": "so"}}, "stream_options.include_usage"),
        ({"temperature": "hot"}, "temperature"),
        ({"tools": [3]}, "tools.0"),
        ({"tools": [{}]}, "tools.0.function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function"),
        ({"tools": [{"function": {"name": ""}}]}, "tools.0.function"),
        ({"tools": [{"function": {"name": "a", "parameters": "b"}}]}, "tools.0.function"),
        ({"n": 0}, "n"),
        ({"unheard": 1}, "unheard"),
    ],
)
def test_an_error_names_the_field_as_the_client_sent_it(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**fields)
    assert caught.value.param == param
    assert param in str(caught.value) and "[" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": 3}, "prompt"),
        ({"prompt": ["a", 3]}, "prompt.1"),
        ({"prompt": [[1], ["a"]]}, "prompt.1.0"),
        ({"best_of": 3}, "best_of"),
        ({"n": 200}, "n"),
    ],
)
def test_an_error_in_a_prompt_names_its_place(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        text(**fields)
    assert caught.value.param == param
