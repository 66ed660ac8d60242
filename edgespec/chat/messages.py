"""Validates the messages of a conversation, and converts them to the form that templates expect.

Messages are in OpenAI's format: a role, content, and calls of tools. Knows no template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from edgespec.errors import UsageError
from edgespec.settings.base import nearest

Message = Mapping[str, Any]
"""`{"role": "user", "content": "..."}`; content may be parts `{"type": "text", "text": "..."}`."""


class CallArguments(dict[str, Any]):
    """Arguments of a call: an object, and the JSON text that the request has for it, since some
    templates read an object and others join a string.

    It has no public attributes besides those of `dict`: to a template they would be arguments.
    """

    __slots__ = ("_text",)

    def __init__(self, arguments: Mapping[str, Any], text: str) -> None:
        super().__init__(arguments)
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: Any) -> Any:
        return self._text + other if isinstance(other, str) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return other + self._text if isinstance(other, str) else NotImplemented


ROLES = ("system", "developer", "user", "assistant", "tool")


def checked(messages: Sequence[Message], knows_developer: bool = True) -> list[dict[str, Any]]:
    """Validated copies with content as text and the arguments of calls as `CallArguments`.

    Missing content becomes "", and other fields that are null, or an empty list of calls, are left
    out: templates ask whether they are defined. The role `developer` becomes `system` unless the
    template knows it. Raises UsageError, which names the message.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise UsageError('messages must be a list such as [{"role": "user", "content": "Hello"}]')
    conversation = []
    for index, message in enumerate(messages):
        try:
            conversation.append(_turn(message, knows_developer))
        except (ValueError, TypeError) as error:
            raise UsageError(f"messages[{index}]: {error}") from error
    return conversation


def _turn(message: Any, knows_developer: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ValueError("a message must be an object with role and content")
    turn, role = _without_null(message), message.get("role")
    if role not in ROLES:
        known = f"it is one of {', '.join(ROLES)}{nearest(str(role), ROLES)}"
        raise ValueError(f"the role {role!r} is unknown: {known}")
    if role == "developer" and not knows_developer:
        turn["role"] = "system"
    if "reasoning" in turn:  # OpenRouter's and vLLM's name
        turn.setdefault("reasoning_content", turn.pop("reasoning"))
    if calls := turn.pop("tool_calls", None):
        turn["tool_calls"] = [*map(_call, calls)]
    # content may be missing or null in answers with calls, as OpenAI's have it
    content = turn.get("content", "" if role in ("assistant", "tool") else None)
    turn["content"] = text_of(content, is_result=role == "tool")
    turn["content"].encode()  # raises for half a surrogate pair, which is not text
    return turn


def _without_null(fields: Message) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def text_of(content: Any, is_result: bool = False) -> str:
    """The text of content; a note stands for other parts of a tool's result. Raises ValueError."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise ValueError("content must be text or a list of parts")
    return "".join(_part(part, is_result) for part in content)


def _part(part: Any, is_result: bool) -> str:
    match part:
        case {"text": str(text)} | {"type": "refusal", "refusal": str(text)}:
            return text
        case {"type": "document", "source": {"type": "text", "data": str(text)}}:
            return text
        case {"type": "search_result", "title": str(title), "content": content}:
            return f"{title}\n{text_of(content)}"
        case {"type": str(kind)} if not kind.endswith("text"):
            if is_result:
                return f"[{kind.removeprefix('input_').removesuffix('_url')} left out]"
            raise ValueError(f"a part is of type {kind!r}: models here read text only")
    raise ValueError("a part of content must be an object with text")


def _call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError("a call's function must be an object with name and arguments")
    arguments = _arguments(function.get("arguments"))
    return _without_null(call) | {"function": _without_null(function) | {"arguments": arguments}}


def _arguments(arguments: Any) -> Any:
    """The arguments as an object that is also text; OpenAI sends JSON in a string."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    try:
        arguments = json.loads(text) if text.strip() else None
    except (ValueError, RecursionError):  # of a call that was cut off
        return CallArguments({"arguments": text}, text)
    if not arguments:  # models write "" and null for functions without parameters
        arguments, text = {}, "{}"
    return CallArguments(arguments, text) if isinstance(arguments, Mapping) else arguments
