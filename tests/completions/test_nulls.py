"""Null is a field left out, in every object of every request, as clients of other languages send
it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from edgespec.completions.embeddings import EmbeddingRequest
from edgespec.completions.protocols.message_requests import MessagesRequest
from edgespec.completions.protocols.request_parts import RequestError, RequestPart
from edgespec.completions.protocols.response_requests import ResponsesRequest
from edgespec.completions.requests import ChatRequest, CompletionRequest
from sentences import refuses

TURNS = [{"role": "user", "content": "a"}]
REQUIRED: dict[str, Any] = {"messages": TURNS, "input": "a", "prompt": "a", "model": "m"} | {
    "max_tokens": 5,
    "name": "f",
    "function": {"name": "f"},
    "schema": {"type": "object"},
    "memory_budget": "1GiB",
    "mode": "auto",
    "tools": [{"function": {"name": "f"}}],
    "allowed_tools": {"mode": "auto", "tools": [{"function": {"name": "f"}}]},
}
"""A value for each required field."""
OWN: dict[str, dict[str, Any]] = {
    "ToolChoice": {"type": "auto"},
    "Thinking": {"type": "adaptive"},
    "OutputFormat": {"type": "json_schema"},
    "AllowedFunctions": {"type": "allowed_tools", "tools": []},
    "ToolsChoice": {"type": "allowed_tools"},
}
"""Other values for those of some objects."""


def parts(kind: type[RequestPart] = RequestPart) -> Iterator[type[RequestPart]]:
    """All objects that requests have, and those that they inherit from."""
    for inherited in kind.__subclasses__():
        if inherited.__module__.startswith("edgespec.") and not inherited.__name__.startswith("_"):
            yield inherited
        yield from parts(inherited)


def least(kind: type[RequestPart]) -> dict[str, Any]:
    """The required fields of an object."""
    names = [f.alias or name for name, f in kind.model_fields.items() if f.is_required()]
    values = REQUIRED | OWN.get(kind.__name__, {})
    return {name: values[name] for name in names}


@pytest.mark.parametrize("kind", sorted({*parts()}, key=lambda kind: kind.__name__))
def test_an_optional_field_may_be_null(kind: type[RequestPart]) -> None:
    content = least(kind)
    expected = kind.model_validate(content)
    optional = [f.alias or name for name, f in kind.model_fields.items() if not f.is_required()]
    for name in optional:
        assert kind.model_validate(content | {name: None}) == expected, name
    assert kind.model_validate(content | dict.fromkeys(optional)) == expected


@pytest.mark.parametrize(
    ("request_of", "required"),
    [
        (ChatRequest, "messages"),
        (CompletionRequest, "prompt"),
        (EmbeddingRequest, "input"),
        (ResponsesRequest, "input"),
        (MessagesRequest, "max_tokens"),
    ],
)
def test_a_required_field_must_not_be_null(request_of: Any, required: str) -> None:
    with refuses(RequestError):
        request_of.parse(least(request_of) | {required: None})


def test_a_null_of_one_dialect_does_not_hide_the_field_of_another() -> None:
    request = ChatRequest.parse({"messages": TURNS, "max_tokens": None, "n_predict": 7})
    assert request.limit == 7
    schema = {"type": "object"}
    fields = {"messages": TURNS, "response_format": None, "json_schema": schema}
    request = ChatRequest.parse(fields)
    assert request.response_format is not None and request.response_format.schema_ == schema


def test_objects_in_lists_may_have_nulls() -> None:
    tool = {"type": None, "name": "f", "description": None, "input_schema": {"type": "object"}}
    content = least(MessagesRequest) | {"tools": [tool]}
    assert MessagesRequest.parse(content).chat_request().tools
    item = {"type": None, "role": "user", "content": "a", "id": None, "status": None}
    asked = ResponsesRequest.parse({"model": "m", "input": [item]})
    assert asked.chat_request(asked.all_items).messages == TURNS


def test_inputs_of_embeddings_may_be_objects_with_a_text() -> None:
    parts = [{"type": "text", "text": "c "}, {"type": "text", "text": "d"}]
    given = ["a", {"prompt_string": "b"}, {"content": parts}, [1, 2]]
    assert EmbeddingRequest.parse({"input": given}).input == ["a", "b", "c d", [1, 2]]
    assert EmbeddingRequest.parse({"input": {"content": parts}}).input == ["c d"]
    for wrong in ({"content": "a"}, {"content": [{"type": "image_url"}]}, {}, [{"a": 1}]):
        with pytest.raises(RequestError):
            EmbeddingRequest.parse({"input": wrong})
