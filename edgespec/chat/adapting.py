"""Conversations in the form that a chat template shows, which small conversations find out.

System messages are merged, calls split and renamed, and tools told as text where a template would
refuse or drop them. Knows no template language.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

from edgespec.chat.render_limits import TemplateLimitError
from edgespec.chat.spliced import CallArguments, TextParts
from edgespec.errors import ModelError

Turn = dict[str, Any]
"""A validated message."""
Render = Callable[[Sequence[Turn], Sequence[Mapping[str, Any]] | None], str]
"""Renders a conversation with tools; raises ModelError."""

_USER, _SYSTEM, _CALLED = "edgespec asks", "edgespec is asked", "edgespec_called"
_CALL = {"name": _CALLED, "arguments": CallArguments({}, "{}")}
_SYSTEMS = ("system", "developer")
_REASONING = ("reasoning", "thinking", "thought", "reasoning_text")
"""Names of a turn's reasoning in templates that do not read `reasoning_content`."""
_ID_LENGTH = 9
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

    def __init__(self, render: Render, source: str) -> None:
        self._render = render
        self._source = source
        self._systems_shown: dict[tuple[str, ...], bool] = {}

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
        calls = [{"id": "edgespec1", "type": "function", "function": _CALL}]
        asked, told = _turn("user", _USER), _turn("tool", _USER) | {"tool_call_id": "edgespec1"}

        def shows_call(content: str | None) -> bool | None:
            calling = {"role": "assistant", "content": content, "tool_calls": calls}
            return self._shows(_CALLED, [asked, calling, told])

        return not shows_call("") and bool(shows_call(None))

    @cached_property
    def calls_need_short_ids(self) -> bool:
        """True if ids of calls must have nine letters and digits, as Mistral's do."""
        return bool(self._shows_calls(["edgespec1"]) and not self._shows_calls(["call_edgespec01"]))

    @cached_property
    def takes_one_call(self) -> bool:
        """True if a turn with two calls is refused, or only the first is shown."""
        ids = ["edgespec1", "edgespec2"]
        return bool(self._shows_calls(ids[:1]) and not self._shows_calls(ids))

    @cached_property
    def reasons_without_text(self) -> bool:
        """True if a call's reasoning is refused beside text."""
        turn = {"reasoning_content": _SYSTEM}
        return bool(
            self._shows_calls(["edgespec1"], **turn)
            and not self._shows_calls(["edgespec1"], content=_SYSTEM, **turn)
        )

    def _shows_calls(self, ids: Sequence[str], **fields: Any) -> bool | None:
        """True if calls with these ids are shown, each under a name of its own."""
        names = [f"{_CALLED}_{number}" for number in range(len(ids))]
        calls = [
            {
                "id": one,
                "type": "function",
                "function": {"name": name, "arguments": CallArguments({}, "{}")},
            }
            for one, name in zip(ids, names, strict=True)
        ]
        calling = {"role": "assistant", "content": None if self.calls_need_null else ""}
        told = [_turn("tool", _USER) | {"tool_call_id": one, "name": _CALLED} for one in ids]
        turns = [_turn("user", _USER), calling | {"tool_calls": calls} | fields, *told]
        turns = _renamed_reasoning(turns, self._source)
        return self._shows(names[-1], _in_parts(turns) if self.reads_only_parts else turns)

    def _shows_systems(self, roles: tuple[str, ...]) -> bool:
        """True if several system messages are shown where the turns have these roles."""
        turns = [_turn(role, f"{_SYSTEM}.{place}.") for place, role in enumerate(roles)]
        texts = [turn["content"] for turn in turns if turn["role"] in _SYSTEMS]
        if roles not in self._systems_shown:
            shown = _in_parts(turns) if self.reads_only_parts else turns
            self._systems_shown[roles] = all(self._shows(text, shown) for text in texts)
        return self._systems_shown[roles]

    def adapted(self, turns: list[Turn]) -> list[Turn]:
        """The turns in the form that the template shows."""
        n_systems = sum(turn["role"] in _SYSTEMS for turn in turns)
        if n_systems and not self.has_system:
            turns = _without_system(turns)
        elif n_systems > (turns[0]["role"] in _SYSTEMS) and not self._shows_systems(
            _outline(turns)
        ):
            turns = _with_one_system(turns)
        if any(turn.get("reasoning_content") for turn in turns):
            joins = "reasoning_content" not in self._source and self.reasons_without_text
            turns = _renamed_reasoning(turns, self._source, joins)
        if any(turn.get("tool_calls") for turn in turns):
            if self.calls_need_null:
                turns = [
                    turn | {"content": None} if _calls_silently(turn) else turn for turn in turns
                ]
            if any(len(turn.get("tool_calls", ())) > 1 for turn in turns) and self.takes_one_call:
                turns = _one_call_each(turns)
            if self.calls_need_short_ids:
                turns = [_with_short_ids(turn) for turn in turns]
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


def _outline(turns: Sequence[Turn]) -> tuple[str, ...]:
    """Roles of a short conversation whose system messages stand where those of `turns` do."""
    n_first = next((n for n, turn in enumerate(turns) if turn["role"] not in _SYSTEMS), len(turns))
    first = tuple(turn["role"] for turn in turns[: min(n_first, 3)])
    later = sorted({turn["role"] for turn in turns[n_first:] if turn["role"] in _SYSTEMS})
    return (
        *first,
        "user",
        *(role for one in later for role in ("assistant", one)),
        *("user",) * bool(later),
    )


def _with_one_system(turns: Sequence[Turn]) -> list[Turn]:
    """The turns with all system messages merged into one, which comes first."""
    texts = [turn["content"] for turn in turns if turn["role"] in _SYSTEMS and turn["content"]]
    others = [turn for turn in turns if turn["role"] not in _SYSTEMS]
    return [_turn("system", "\n\n".join(texts)), *others]


def _renamed_reasoning(turns: Sequence[Turn], source: str, joins: bool = False) -> list[Turn]:
    """The turns with reasoning under the names that the template reads; `joins`: of a call, with
    its text behind it."""
    if "reasoning_content" in source:
        return [*turns]
    names = [n for n in _REASONING if re.search(rf"\.{n}\b|['\"]{n}['\"]", source)]

    def renamed(turn: Turn) -> Turn:
        if not (reasoning := turn.get("reasoning_content")):
            return turn
        if joins and turn.get("tool_calls") and turn["content"]:
            reasoning = f"{reasoning}\n\n{turn['content']}"
            return turn | {"content": ""} | dict.fromkeys(names, reasoning)
        return turn | dict.fromkeys(names, reasoning)

    return [*map(renamed, turns)]


def _one_call_each(turns: Sequence[Turn]) -> list[Turn]:
    """The turns with several calls at once as several turns, each before its result."""
    split: list[Turn] = []
    rest = list(turns)
    while rest:
        turn = rest.pop(0)
        calls = turn.get("tool_calls", ())
        if len(calls) < 2:
            split.append(turn)
            continue
        n_results = next((n for n, one in enumerate(rest) if one["role"] != "tool"), len(rest))
        results, rest = rest[:n_results], rest[n_results:]
        bare = {"role": turn["role"], "content": turn["content"] and ""}
        for number, call in enumerate(calls):
            own = [one for one in results if one.get("tool_call_id", "") == call.get("id")]
            own = own or results[:1]
            results = [one for one in results if one not in own]
            split += [(bare if number else turn) | {"tool_calls": [call]}, *own]
        split += results
    return split


def _with_short_ids(turn: Turn) -> Turn:
    if turn.get("tool_calls"):
        calls = [call | {"id": _short(call.get("id", ""))} for call in turn["tool_calls"]]
        return turn | {"tool_calls": calls}
    if turn.get("tool_call_id"):
        return turn | {"tool_call_id": _short(turn["tool_call_id"])}
    return turn


def _short(identity: str) -> str:
    """The id, or nine letters and digits that stand for it."""
    if len(identity) == _ID_LENGTH and identity.isalnum():
        return identity
    return hashlib.sha256(identity.encode()).hexdigest()[:_ID_LENGTH]


def complete_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tools with a description and parameters, which OpenAI's format may lack and templates
    read."""
    completed = []
    for tool in tools:
        function = dict(tool.get("function") or tool)
        function["description"] = function.get("description") or ""
        parameters = dict(function.get("parameters") or {"type": "object"})
        if parameters.get("type") == "object":
            parameters.setdefault("properties", {})
        function["parameters"] = parameters
        completed.append(dict(tool) | {"function": function} if "function" in tool else function)
    return completed


OFF: Mapping[str, Any] = MappingProxyType(
    {"enable_thinking": False, "thinking": False, "thinking_mode": "disabled"}
    | {"thinking_budget": 0, "thinking_option": "off"}
)
"""Variables by which templates turn reasoning off."""


def reasoning_variables(variables: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The variables of a template, in which the effort `none` is the least that it knows."""
    if variables.get("reasoning_effort") != "none":
        return dict(variables)
    efforts = ("none", "no_think", "minimal")
    known = [e for e in efforts if f"'{e}'" in source or f'"{e}"' in source]
    return {**OFF, **variables, "reasoning_effort": [*known, "low"][0]}


GENERIC = "<tool_call>"
"""Mark of calls in the form that is shown by templates without tools."""
_OFFER = """\
You can call functions. They are, as JSON:
<tools>
{tools}
</tools>
To call one, write its name and its arguments as JSON between these marks, and nothing behind them:
<tool_call>
{{"name": "NAME", "arguments": {{...}}}}
</tool_call>
The result then comes between <tool_response> marks. If no function helps, answer in plain text."""


def without_tools(
    turns: Sequence[Turn], tools: Sequence[Mapping[str, Any]] | None, keeps_calls: bool
) -> list[Turn]:
    """The conversation for a template that knows no tools, which are told as text, and so are
    calls and results unless it `keeps_calls`."""
    told: list[Turn] = []
    for turn in turns:
        if turn["role"] == "tool" and not keeps_calls:
            result = f"<tool_response>\n{turn['content']}\n</tool_response>"
            if told and told[-1]["role"] == "user":
                result = f"{told.pop()['content']}\n{result}"
            told.append(_turn("user", result))
        elif calls := not keeps_calls and turn.get("tool_calls"):
            texts = [turn["content"]] if turn["content"] else []
            for call in calls:
                name = json.dumps(call["function"]["name"], ensure_ascii=False)
                told_call = f'{{"name": {name}, "arguments": {call["function"]["arguments"]}}}'
                texts.append(f"<tool_call>\n{told_call}\n</tool_call>")
            others = {name: value for name, value in turn.items() if name != "tool_calls"}
            told.append(others | {"content": "\n".join(texts)})
        else:
            told.append(turn)
    if tools:
        lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        offer = _turn("system", _OFFER.format(tools=lines))
        told = _with_one_system([*told[:1], offer, *told[1:]])
    return told
