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
_MAY_BE_EMPTY = ("assistant", "tool")
"""Roles whose content may be missing or null, as OpenAI's replies with calls have it."""


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
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise UsageError(f"{where} must be an object with role and content")
        role = message.get("role")
        if role not in ROLES:
            raise UsageError(
                f"{where}.role {role!r} is unknown: it is one of {', '.join(ROLES)}"
                f"{nearest(str(role), ROLES)}"
            )
        turn = _without_null(message)
        if role == "developer" and not knows_developer:
            turn["role"] = "system"
        if "reasoning" in turn:  # OpenRouter's and vLLM's name
            turn.setdefault("reasoning_content", turn.pop("reasoning"))
        if calls := turn.pop("tool_calls", None):
            turn["tool_calls"] = _calls(calls, where)
        turn["content"] = _content(turn.get("content"), str(role), where)
        conversation.append(turn)
    return conversation


def _without_null(fields: Message) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def left_out(kind: str) -> str:
    """The note that stands for a part of a tool's result that is no text, such as a picture."""
    return f"[{kind.removeprefix('input_').removesuffix('_url')} left out]"


def _content(content: Any, role: str, where: str) -> str:
    if isinstance(content, str):
        text = content
    elif content is None and role in _MAY_BE_EMPTY:
        return ""
    elif isinstance(content, Sequence):
        text = "".join(_part(part, role, f"{where}.content[{i}]") for i, part in enumerate(content))
    else:
        raise UsageError(f"{where}.content must be text or a list of text parts")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{where}.content has half a surrogate pair, which is not text") from error
    return text


def _part(part: Any, role: str, where: str) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text":
        text = part.get("text")
        if isinstance(text, str):
            return text
    kind = part.get("type") if isinstance(part, Mapping) else None
    if isinstance(kind, str) and kind != "text":
        if role == "tool":
            return left_out(kind)
        raise UsageError(f"{where} is of type {kind!r}: models here read text only")
    raise UsageError(f'{where} must be an object such as {{"type": "text", "text": "..."}}')


def _calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise UsageError(f"{where}.tool_calls must be a list")
    read = []
    for index, call in enumerate(calls):
        place = f"{where}.tool_calls[{index}]"
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise UsageError(f"{place}.function must be an object with name and arguments")
        arguments = _arguments(function.get("arguments"), f"{place}.function.arguments")
        named = _without_null(function) | {"arguments": arguments}
        read.append(_without_null(call) | {"function": named})
    return read


def _arguments(arguments: Any, where: str) -> Any:
    """The arguments as an object that is also text; OpenAI sends JSON in a string."""
    text = arguments if isinstance(arguments, str) else None
    try:
        if text is not None:
            arguments = json.loads(text) if text.strip() else None
        if not arguments:  # models write "" and null for functions without parameters
            arguments, text = {}, "{}"
        if isinstance(arguments, Mapping):
            return CallArguments(arguments, text or json.dumps(arguments, ensure_ascii=False))
    except (ValueError, RecursionError):  # of a call that was cut off
        return CallArguments({"arguments": text}, str(text))
    except TypeError as error:
        raise UsageError(f"{where} are not JSON: {error}") from error
    return arguments
