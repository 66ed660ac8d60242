"""Reads content of messages: text, or a list of parts that are text."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from edgespec.chat.messages import left_out
from edgespec.completions.requests import RequestError

UNREAD = "models here read text only"


def as_text(
    content: object, where: str, param: str, kinds: Collection[str], is_result: bool = False
) -> str:
    """The text of content that is text, or parts of one of the `kinds` with a field `text`.

    A note stands for other parts of a tool's result, which stay in a conversation. Raises
    RequestError, which says `where` it stands in the field `param`.
    """
    if isinstance(content, str):
        return content
    texts = []
    for n, part in enumerate(as_list(content, where, param)):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if is_result and isinstance(kind, str) and kind not in kinds:
            texts.append(left_out(kind))
        else:
            texts.append(part_text(part, f"{where}.{n}", param, kinds))
    return "".join(texts)


def part_text(part: object, where: str, param: str, kinds: Collection[str]) -> str:
    """The text of one part."""
    fields = as_object(part, where, param)
    kind = fields.get("type")
    if kind not in kinds:
        raise RequestError(f"{where} is of type {kind!r}: {UNREAD}", param)
    return text_field(fields, "text", where, param)


def text_field(fields: Mapping[str, Any], name: str, where: str, param: str) -> str:
    """A field that must be text."""
    value = fields.get(name)
    if not isinstance(value, str):
        raise RequestError(f"{where}.{name} must be text", param)
    return value


def as_object(value: object, where: str, param: str) -> Mapping[str, Any]:
    """The value, which must be an object."""
    if not isinstance(value, Mapping):
        raise RequestError(f"{where} must be an object", param)
    return value


def as_list(value: object, where: str, param: str) -> list[Any]:
    """The value, which must be a list."""
    if not isinstance(value, list):
        raise RequestError(f"{where} must be text or a list", param)
    return value
