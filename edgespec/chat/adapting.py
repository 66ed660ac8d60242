"""Conversations in the form of which a chat template shows the most.

System messages are merged, calls split and renamed, and tools told as text where a template would
refuse or drop them. Knows no template language.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, reduce
from typing import Any

from edgespec.chat.messages import CallArguments
from edgespec.chat.render_limits import TemplateLimitError
from edgespec.errors import ModelError

Turn = dict[str, Any]
"""A validated message."""
Change = Callable[[Sequence[Turn]], list[Turn]]
"""Returns a conversation in another form."""

BEGIN, END = "<tool_call>", "</tool_call>"
"""Marks around a call that is JSON, the form of many families and of templates without tools."""
_SYSTEMS = ("system", "developer")
_REASONING = ("reasoning", "thinking", "thought", "reasoning_text")
"""Names of a turn's reasoning in templates that do not read `reasoning_content`."""
_PARAMETERS = {"type": "object", "properties": {}, "required": []}
_FUNCTION = {"name": "edgespec_tool", "description": "Nothing.", "parameters": _PARAMETERS}
_TOOLS = [{"type": "function", "function": _FUNCTION}]


def shown(
    turns: Sequence[Turn], with_tools: bool, render: Callable[..., str]
) -> tuple[int, list[Turn]]:
    """Number of texts and calls that a template shows, -1 if it refuses all forms, and the turns in
    the form of which it shows the most.

    An outline of the conversation, in which each text is a mark, is rendered without changes. If
    marks are missing, all changes are made, then each is left out, and at last made again, where
    that shows more, or as much with fewer. `render` returns the text of turns and tools, and raises
    ModelError. Raises TemplateLimitError for a template that is stopped.
    """
    marks, outline = _outline(turns)

    @cache
    def score(form: tuple[Change, ...]) -> tuple[int, int]:
        try:
            text = render(_changed(outline, form), _TOOLS if with_tools else None).lower()
        except TemplateLimitError:
            raise
        except ModelError:
            return -1, -len(form)
        return sum(mark in text for mark in marks), -len(form)

    form: tuple[Change, ...] = ()
    if score(form)[0] < len(marks):
        form = changes = tuple(
            change
            for place, change in enumerate(_CHANGES)
            if _changed(outline, _CHANGES[: place + 1]) != _changed(outline, _CHANGES[:place])
        )
        for change in (*reversed(changes), *changes):
            other = tuple(one for one in changes if (one in form) != (one is change))
            form = max(form, other, key=score)
        form = max((), form, key=score)
    return score(form)[0], _changed(turns, form)


def _outline(turns: Sequence[Turn]) -> tuple[list[str], list[Turn]]:
    """Marks, and the turns with a mark in place of each text and each function's name.

    Reasoning has none: templates leave out that of earlier turns.
    """
    marks: list[str] = []

    def mark(form: str) -> str:
        marks.append(form.format(len(marks)))
        return marks[-1]

    outline = []
    for turn in turns:
        text = turn["content"] and f"Hello, {mark('edgespec {}.')} hello"  # ends may be cut
        other = turn | {"content": text}
        if calls := turn.get("tool_calls"):
            empty = {"arguments": CallArguments({}, "{}")}
            other["tool_calls"] = [
                call | {"function": empty | {"name": mark("edgespec_{}_")}} for call in calls
            ]
        outline.append(other)
    return marks, outline


def _turn(role: str, content: str) -> Turn:
    return {"role": role, "content": content}


def _changed(turns: Sequence[Turn], changes: Sequence[Change]) -> list[Turn]:
    return reduce(lambda changed, change: change(changed), changes, [*turns])


def _with_one_system(turns: Sequence[Turn]) -> list[Turn]:
    """The turns with all system messages merged into one, which comes first."""
    if not any(turn["role"] in _SYSTEMS for turn in turns[1:]):
        return [*turns]
    texts = [turn["content"] for turn in turns if turn["role"] in _SYSTEMS and turn["content"]]
    others = [turn for turn in turns if turn["role"] not in _SYSTEMS]
    return [_turn("system", "\n\n".join(texts)), *others]


def _alternating(turns: Sequence[Turn]) -> list[Turn]:
    """The turns with those of one role in a row as one, the user's words behind a result in it, and
    the user's turn first."""
    merged: list[Turn] = []
    for turn in turns:
        last, role = merged[-1] if merged else _turn("system", ""), turn["role"]
        is_same = last["role"] == role and role in ("user", "assistant")
        if (is_same and "tool_calls" not in last) or (last["role"], role) == ("tool", "user"):
            content = "\n\n".join(filter(None, (last["content"], turn["content"])))
            merged[-1] = turn | last | {"content": content}
            continue
        if role == "assistant" and last["role"] in _SYSTEMS:
            merged.append(_turn("user", ""))
        merged.append(turn)
    return merged


def _without_system(turns: Sequence[Turn]) -> list[Turn]:
    """The turns with system messages as the user's words."""
    return _alternating(
        [turn | {"role": "user"} if turn["role"] == "system" else turn for turn in turns]
    )


def _each(change: Callable[[Turn], Turn]) -> Change:
    return lambda turns: [*map(change, turns)]


def renamed(turn: Turn) -> Turn:
    """The turn with its reasoning under all names that templates have for it."""
    reasoning = turn.get("reasoning_content")
    return turn | dict.fromkeys(_REASONING, reasoning) if reasoning else turn


def _joined(turn: Turn) -> Turn:
    """The turn with the text of a call behind its reasoning."""
    if not (turn.get("tool_calls") and turn["content"] and turn.get("reasoning_content")):
        return turn
    names = turn.keys() & {*_REASONING}
    return turn | {"content": ""} | {n: f"{turn[n]}\n\n{turn['content']}" for n in names}


def _with_null(turn: Turn) -> Turn:
    """The turn with null instead of empty content beside calls."""
    return turn | {"content": turn["content"] or None} if turn.get("tool_calls") else turn


def _one_call_each(turns: Sequence[Turn]) -> list[Turn]:
    """The turns with several calls at once as several turns, each before its result."""
    groups: list[tuple[Any, list[Turn]]] = []  # the id of a call, and its turn with its results
    begin = 0
    for turn in turns:
        if turn["role"] == "tool" and groups:
            told = turn.get("tool_call_id")
            _, group = min(groups[begin:], key=lambda group: (group[0] != told, len(group[1])))
            group.append(turn)
        else:
            begin, bare = len(groups), _turn(turn["role"], "")
            for n, call in enumerate(turn.get("tool_calls", ())):
                groups.append((call.get("id"), [(bare if n else turn) | {"tool_calls": [call]}]))
            if begin == len(groups):
                groups.append((None, [turn]))
    return [turn for _, group in groups for turn in group]


def _with_short_ids(turn: Turn) -> Turn:
    """The turn with ids of nine letters and digits, as Mistral's templates want them."""
    if calls := turn.get("tool_calls"):
        return turn | {"tool_calls": [c | {"id": _short(str(c.get("id", "")))} for c in calls]}
    identity = turn.get("tool_call_id")
    return turn | {"tool_call_id": _short(str(identity))} if identity else turn


def _short(identity: str) -> str:
    """The id, or nine letters and digits that stand for it."""
    is_short = len(identity) == 9 and identity.isalnum()
    return identity if is_short else hashlib.sha256(identity.encode()).hexdigest()[:9]


def _in_parts(turn: Turn) -> Turn:
    """The turn with its content as a list of parts, which is all that some templates read."""
    content = turn["content"]
    return turn | {"content": content and [{"type": "text", "text": content}]}


_CHANGES: Sequence[Change] = (
    _with_one_system,
    _alternating,
    _without_system,
    _each(_joined),
    _one_call_each,
    *map(_each, (_with_short_ids, _with_null, _in_parts)),
)
"""Other forms of conversations, in the order in which they are made; what many templates refuse
comes last, so that it is left out first."""


def complete_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tools with a description and parameters, which OpenAI's format may lack and templates
    read."""
    completed = []
    for tool in tools:
        function = dict(tool.get("function") or tool)
        parameters = dict(function.get("parameters") or {"type": "object"})
        if parameters.get("type") == "object":
            parameters.setdefault("properties", {})
        function |= {"description": function.get("description") or "", "parameters": parameters}
        completed.append(dict(tool) | {"function": function} if "function" in tool else function)
    return completed


OFF: dict[str, Any] = {"enable_thinking": False, "thinking": False, "thinking_mode": "disabled"}
OFF |= {"thinking_budget": 0, "thinking_option": "off"}
"""Variables by which templates turn reasoning off."""


_EFFORTS = ("none", "no_think", "minimal", "low", "medium", "high", "xhigh", "max")


def reasoning_variables(variables: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The variables of a template, in which the effort `none` is the least that it knows.

    A template that never asks whether `enable_thinking` is defined gets it, as from llama.cpp.
    """
    if "not enable_thinking" in source and not re.search(r"enable_thinking( is | ?\|)", source):
        variables = {"enable_thinking": True, **variables}
    if variables.get("reasoning_effort") != "none":
        return dict(variables)
    known = [effort for effort in _known_efforts(source) if effort in _EFFORTS[:3]]
    return {**OFF, **variables, "reasoning_effort": [*known, "low"][0]}


def other_effort(effort: Any, source: str) -> str | None:
    """The effort nearest to one that a template refuses, of those that its source names."""
    if effort not in _EFFORTS:
        return None
    place = _EFFORTS.index(effort) + 0.1  # of two as near, the greater
    others = (other for other in _known_efforts(source) if other != effort)
    return min(others, key=lambda other: abs(_EFFORTS.index(other) - place), default=None)


def _known_efforts(source: str) -> list[str]:
    return [effort for effort in _EFFORTS if f"'{effort}'" in source or f'"{effort}"' in source]


_OFFER = f"""\
You can call functions. They are, as JSON:
<tools>
{{tools}}
</tools>
To call one, write its name and its arguments as JSON between these marks, and nothing behind them:
{BEGIN}
{{{{"name": "NAME", "arguments": {{{{...}}}}}}}}
{END}
The result then comes between <tool_response> marks. If no function helps, answer in plain text."""


def as_text(turns: Sequence[Turn]) -> list[Turn]:
    """The turns with calls and results as text, for templates that show none."""
    told: list[Turn] = []
    for turn in turns:
        if turn["role"] == "tool":
            result = f"<tool_response>\n{turn['content']}\n</tool_response>"
            before = [told.pop()["content"]] if told and told[-1]["role"] == "user" else []
            told.append(_turn("user", "\n".join([*before, result])))
            continue
        others = dict(turn)
        texts = [turn["content"]] if turn["content"] else []
        for call in others.pop("tool_calls", ()):
            name = json.dumps(call["function"]["name"], ensure_ascii=False)
            told_call = f'{{"name": {name}, "arguments": {call["function"]["arguments"]}}}'
            texts.append(f"{BEGIN}\n{told_call}\n{END}")
        told.append(others | {"content": "\n".join(texts)})
    return told


def offering(turns: Sequence[Turn], tools: Sequence[Mapping[str, Any]]) -> list[Turn]:
    """The conversation with tools told as text, for a template that knows none."""
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return _with_one_system([*turns[:1], _turn("system", _OFFER.format(tools=lines)), *turns[1:]])
