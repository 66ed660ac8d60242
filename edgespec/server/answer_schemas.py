"""JSON schemas of the server's answers: what clients may rely on, not every field."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from edgespec.session.session_budget import BudgetReport

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "integer", "minimum": 0}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}


def _object(**fields: Schema) -> Schema:
    """A schema of an object that has these fields, and perhaps others."""
    return {"type": "object", "properties": fields, "required": [*fields]}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_USAGE = _object(prompt_tokens=_NUMBER, completion_tokens=_NUMBER, total_tokens=_NUMBER)
_MODEL = _object(
    id=TEXT,
    object={"const": "model"},
    type={"const": "model"},
    display_name=TEXT,
    created=_NUMBER,
    created_at=TEXT,
    owned_by=TEXT,
    kind={"enum": ["text", "embedding"]},
    size_bytes=_NUMBER,
    smallest_budget_bytes=_NUMBER,
    status=_object(value={"enum": ["loaded", "loading", "unloaded"]}),
)
_TOKEN: Schema = {
    "anyOf": [_NUMBER, _object(id=_NUMBER, piece={"anyOf": [TEXT, _list(_NUMBER)]})],
}


def _completion(kind: str, **choice: Schema) -> Schema:
    reason = {"enum": ["stop", "length", "tool_calls"]}
    choices = _list(_object(index=_NUMBER, finish_reason=reason, **choice))
    return _object(
        id=TEXT, object={"const": kind}, created=_NUMBER, model=TEXT, choices=choices, usage=_USAGE
    )


SCHEMAS: dict[str, Schema] = {
    "Error": _object(
        error=_object(message=TEXT, type=TEXT, param=_TEXT_OR_NULL, code=_TEXT_OR_NULL)
    ),
    "MessagesError": _object(
        type={"const": "error"}, error=_object(type=TEXT, message=TEXT), request_id=TEXT
    ),
    "Model": _MODEL,
    "Budget": TypeAdapter(BudgetReport).json_schema(),
}
"""Schemas that several answers refer to."""
WHOLE: dict[str, Schema] = {
    "/v1/chat/completions": _completion(
        "chat.completion", message=_object(role={"const": "assistant"}, content=_TEXT_OR_NULL)
    ),
    "/v1/completions": _completion("text_completion", text=TEXT),
    "/v1/embeddings": _object(
        object={"const": "list"},
        data=_list(
            _object(
                object={"const": "embedding"},
                index=_NUMBER,
                embedding={"anyOf": [TEXT, _list({"type": "number"})]},
            )
        ),
        model=TEXT,
        usage=_object(prompt_tokens=_NUMBER, total_tokens=_NUMBER),
    ),
    "/v1/responses": _object(
        id=TEXT,
        object={"const": "response"},
        status={"enum": ["completed", "incomplete", "failed"]},
        model=TEXT,
        output=_list(_object(type=TEXT, id=TEXT)),
        usage=_object(input_tokens=_NUMBER, output_tokens=_NUMBER, total_tokens=_NUMBER),
    ),
    "/v1/messages": _object(
        id=TEXT,
        type={"const": "message"},
        role={"const": "assistant"},
        model=TEXT,
        content=_list(_object(type={"enum": ["text", "thinking", "tool_use"]})),
        stop_reason={"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
        stop_sequence=_TEXT_OR_NULL,
        usage=_object(input_tokens=_NUMBER, output_tokens=_NUMBER),
    ),
    "/v1/messages/count_tokens": _object(input_tokens=_NUMBER),
    "/v1/tokenize": _object(tokens=_list(_TOKEN)),
    "/v1/detokenize": _object(content=TEXT),
    "/v1/budget": _reference("Budget"),
    "/v1/models": _object(object={"const": "list"}, data=_list(_reference("Model"))),
    "/v1/models/{name}": _reference("Model"),
    "/v1/health": _object(
        status={"const": "ok"},
        requests_in_progress=_NUMBER,
        slots_idle=_NUMBER,
        slots_processing=_NUMBER,
    ),
}
"""Schemas of whole answers in JSON, by route."""


def error_schema(path: str) -> Schema:
    """The schema of a route's errors. What is refused before a route is known, such as a host, has
    OpenAI's format."""
    if path.startswith("/v1/messages"):
        return {"anyOf": [_reference("MessagesError"), _reference("Error")]}
    return _reference("Error")
