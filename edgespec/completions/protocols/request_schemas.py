"""JSON schemas of request fields whose types in Python do not tell clients enough."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, WithJsonSchema

from edgespec.chat.messages import ROLES

_TEXT = {"type": "string"}


def _objects(properties: dict[str, Any], *required: str, n_min: int = 0) -> dict[str, Any]:
    """The schema of a list of objects, which may have other properties, too."""
    items = {"type": "object", "properties": properties, "required": [*required]}
    return {"type": "array", "minItems": n_min, "items": items}


_PARTS = _objects({"type": _TEXT}, "type")
_CONTENT = {"anyOf": [_TEXT, _PARTS]}

STOPS = WithJsonSchema(TypeAdapter(str | list[str] | None).json_schema())
TEXTS = WithJsonSchema(TypeAdapter(str | list[int] | list[str | list[int]]).json_schema())
"""A text or several, each as text or tokens."""
CHAT_MESSAGES = WithJsonSchema(
    _objects(
        {"role": {"enum": [*ROLES]}, "content": {"anyOf": [_TEXT, _PARTS, {"type": "null"}]}},
        "role",
        n_min=1,
    )
)
TURNS = WithJsonSchema(
    _objects(
        {"role": {"enum": ["user", "assistant", "system"]}, "content": _CONTENT},
        "role",
        "content",
        n_min=1,
    )
)
"""The messages of Anthropic's protocol."""
ITEMS = WithJsonSchema(
    {"anyOf": [_TEXT, _objects({"type": _TEXT, "role": _TEXT, "content": _CONTENT})]}
)
"""The input of OpenAI's Responses."""
