"""Adapts a conversation to what a template shows: system messages, and content as parts.

Small conversations are rendered to find out what a template shows, as llama.cpp does. Knows no
template language.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from edgespec.chat.render_limits import TemplateLimitError
from edgespec.chat.spliced import CallArguments, TextParts
from edgespec.errors import ModelError

Turn = dict[str, Any]
"""A validated message."""
Render = Callable[[Sequence[Turn], Sequence[Mapping[str, Any]] | None], str]
"""Renders a conversation with tools; raises ModelError."""

_USER, _SYSTEM, _CALLED = "edgespec asks", "edgespec is asked", "edgespec_called"
_TOOL = {
    "type": "function",
    "function": {
        "name": "edgespec_tool",
        "description": "Nothing.",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}


class ShownContent:
    """Facts about what a template shows; each is found by rendering, when it is asked for."""

    def __init__(self, render: Render) -> None:
        self._render = render

    @cached_property
    def shows_messages(self) -> bool:
        """True if a user's message is shown; also if a lone message is refused."""
        try:
            return self.reads_only_parts or self._shows(_USER, [_turn("user", _USER)]) is not False
        except TemplateLimitError:
            return True

    @cached_property
    def reads_only_parts(self) -> bool:
        """True if content is shown as a list of parts, but not as a string."""
        alone = [_turn("user", _USER)]
        talks = [alone, [_turn("system", _SYSTEM), *alone]]
        if any(self._shows(_USER, talk) for talk in talks):
            return False
        return any(self._shows(_USER, _in_parts(talk)) for talk in talks)

    @cached_property
    def has_system(self) -> bool:
        """False if system messages are refused or left out where a user's message is shown."""
        alone = [_turn("user", _USER)]
        talks = [[_turn("system", _SYSTEM), *alone], alone]
        if self.reads_only_parts:
            talks = [_in_parts(talk) for talk in talks]
        return bool(self._shows(_SYSTEM, talks[0]) or not self._shows(_USER, talks[1]))

    @cached_property
    def calls_need_null(self) -> bool:
        """True if calls are shown beside content that is null, but not beside an empty string."""
        call = {"name": _CALLED, "arguments": CallArguments({}, "{}")}
        calls = [{"id": "edgespec1", "type": "function", "function": call}]
        asked, told = _turn("user", _USER), _turn("tool", _USER) | {"tool_call_id": "edgespec1"}

        def shows_call(content: str | None) -> bool | None:
            calling = {"role": "assistant", "content": content, "tool_calls": calls}
            return self._shows(_CALLED, [asked, calling, told])

        return not shows_call("") and bool(shows_call(None))

    def adapted(self, turns: list[Turn]) -> list[Turn]:
        """The turns in the form that the template shows."""
        if any(turn["role"] == "system" for turn in turns) and not self.has_system:
            turns = _without_system(turns)
        if any(_calls_silently(turn) for turn in turns) and self.calls_need_null:
            return [turn | {"content": None} if _calls_silently(turn) else turn for turn in turns]
        return _in_parts(turns) if self.reads_only_parts else turns

    def _shows(self, text: str, conversation: Sequence[Turn]) -> bool | None:
        """True if `text` is in the rendered conversation; None if it is refused.

        Some templates render nothing without tools. Raises TemplateLimitError for a template that
        is stopped.
        """
        for tools in (None, [_TOOL]):
            try:
                return text in self._render(conversation, tools).lower()
            except TemplateLimitError:
                raise
            except ModelError:
                continue
        return None


def _turn(role: str, content: str) -> Turn:
    return {"role": role, "content": content}


def _calls_silently(turn: Turn) -> bool:
    return bool(turn.get("tool_calls")) and not turn["content"]


def _in_parts(turns: Sequence[Turn]) -> list[Turn]:
    return [turn | {"content": TextParts(turn["content"])} for turn in turns]


def _without_system(turns: Sequence[Turn]) -> list[Turn]:
    """The turns with system messages merged into the user's next message, or into the last."""
    merged: list[Turn] = []
    instructions: list[str] = []
    for turn in turns:
        if turn["role"] == "system":
            instructions += [turn["content"]] if turn["content"] else []
        elif turn["role"] == "user" and instructions:
            merged.append(turn | {"content": "\n".join([*instructions, turn["content"]])})
            instructions = []
        else:
            merged.append(turn)
    if instructions and merged and merged[-1]["role"] == "user":
        instructions.insert(0, merged.pop()["content"])
    if instructions:
        merged.append(_turn("user", "\n".join(instructions)))
    return merged
