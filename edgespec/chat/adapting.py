"""Conversations in the form that a chat template shows, which small conversations find out.

System messages are merged, calls split and renamed, and tools told as text where a template would
refuse or drop them. Knows no template language.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import takewhile
from types import MappingProxyType
from typing import Any

from edgespec.chat.render_limits import TemplateLimitError
from edgespec.chat.spliced import CallArguments, TextParts
from edgespec.errors import ModelError

Turn = dict[str, Any]
"""A validated message."""
Render = Callable[[Sequence[Turn], Sequence[Mapping[str, Any]] | None], str]
"""Renders a conversation with tools; raises ModelError."""
Change = Callable[[Sequence[Turn]], list[Turn]]
"""Returns a conversation in another form."""

_USER, _SYSTEM, _CALLED = "edgespec asks", "edgespec is asked", "edgespec_called"
_SYSTEMS = ("system", "developer")
_REASONING = ("reasoning", "thinking", "thought", "reasoning_text")
"""Names of a turn's reasoning in templates that do not read `reasoning_content`."""
_ID_LENGTH = 9
_PARAMETERS = {"type": "object", "properties": {}, "required": []}
_FUNCTION = {"name": "edgespec_tool", "description": "Nothing.", "parameters": _PARAMETERS}
_TOOL = {"type": "function", "function": _FUNCTION}


@dataclass(frozen=True, slots=True)
class _Trial:
    """A small conversation, and the texts of it that a template has to show."""

    texts: Sequence[str]
    turns: Sequence[Turn]


class ShownContent:
    """Conversations in the form that a template shows, which small ones find out once."""

    def __init__(self, render: Render, source: str) -> None:
        self._render = render
        self._renames = "reasoning_content" not in source
        self._is_needed: dict[tuple[Change, str], bool] = {}

    @cached_property
    def shows_messages(self) -> bool:
        """True if a user's message is shown; also if a lone message is refused."""
        try:
            return self._shows(_Trial([_USER], self.adapted(_ASKED))) is not False
        except TemplateLimitError:
            return True

    @cached_property
    def _reads_only_parts(self) -> bool:
        """True if content is shown as a list of parts, but not as a string."""
        talks = [_ASKED, [_turn("system", _SYSTEM), *_ASKED]]
        return not any(self._shows(_Trial([_USER], talk)) for talk in talks) and any(
            self._shows(_Trial([_USER], _in_parts(talk))) for talk in talks
        )

    def adapted(self, turns: list[Turn]) -> list[Turn]:
        """The turns in the form that the template shows."""
        changes = [_each(_renamed)] if self._renames else []
        turns = _changed(turns, changes)
        for change, trial in _FORMS:
            other = change(turns)
            if other != turns and self._needs(change, trial(turns), changes):
                changes.append(change)
                turns = other
        return _in_parts(turns) if self._reads_only_parts else turns

    def _needs(self, change: Change, trial: _Trial, changes: Sequence[Change]) -> bool:
        """True if the template shows a trial with `change` only, beside earlier `changes`."""
        key = change, repr(trial)
        if key not in self._is_needed:
            before = _changed(trial.turns, changes)
            is_shown = [
                self._shows(_Trial(trial.texts, _in_parts(t) if self._reads_only_parts else t))
                for t in (before, change(before))
            ]
            self._is_needed[key] = not is_shown[0] and bool(is_shown[1])
        return self._is_needed[key]

    def _shows(self, trial: _Trial) -> bool | None:
        """True if the texts are in the rendered conversation; None if it is refused.

        Some templates render nothing without tools. Raises TemplateLimitError for a template that
        is stopped.
        """
        for tools in (None, [_TOOL]):
            try:
                rendered = self._render(trial.turns, tools).lower()
            except TemplateLimitError:
                raise
            except ModelError:
                continue
            return all(text in rendered for text in trial.texts)
        return None


def _turn(role: str, content: str | None, **fields: Any) -> Turn:
    return {"role": role, "content": content, **fields}


def _changed(turns: Sequence[Turn], changes: Sequence[Change]) -> list[Turn]:
    return reduce(lambda changed, change: change(changed), changes, [*turns])


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


def _without_lost_system(turns: Sequence[Turn]) -> list[Turn]:
    """The turns with system messages merged into the user's where a tool's result is the last."""
    return _without_system(turns) if turns[-1]["role"] == "tool" else [*turns]


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


def _each(change: Callable[[Turn], Turn]) -> Change:
    return lambda turns: [*map(change, turns)]


def _renamed(turn: Turn) -> Turn:
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
    """The turn with ids of nine letters and digits, as Mistral's templates want them."""
    if calls := turn.get("tool_calls"):
        return turn | {"tool_calls": [c | {"id": _short(c.get("id", ""))} for c in calls]}
    identity = turn.get("tool_call_id")
    return turn | {"tool_call_id": _short(identity)} if identity else turn


def _short(identity: str) -> str:
    """The id, or nine letters and digits that stand for it."""
    if len(identity) == _ID_LENGTH and identity.isalnum():
        return identity
    return hashlib.sha256(identity.encode()).hexdigest()[:_ID_LENGTH]


def _systems(turns: Sequence[Turn]) -> _Trial:
    """The trial of system messages that stand where those of `turns` do."""
    roles = [turn["role"] for turn in turns]
    first = [*takewhile(_SYSTEMS.__contains__, roles)]
    later = sorted({*roles[len(first) :]} & {*_SYSTEMS})
    shown = [*first[:3], "user", *(role for one in later for role in ("assistant", one, "user"))]
    told = [_turn(role, f"{_SYSTEM}.{place}.") for place, role in enumerate(shown)]
    return _Trial([turn["content"] for turn in told if turn["role"] in _SYSTEMS], told)


def _calls(*ids: str, content: str = "", **fields: Any) -> _Trial:
    """The trial of a turn that calls functions, each under a name of its own, and their results."""
    names = [f"{_CALLED}_{place}" for place in range(len(ids))]
    empty = CallArguments({}, "{}")
    calls = [
        {"id": one, "type": "function", "function": {"name": name, "arguments": empty}}
        for one, name in zip(ids, names, strict=True)
    ]
    results = [_turn("tool", _USER, tool_call_id=one, name=_CALLED) for one in ids]
    calling = _turn("assistant", content, tool_calls=calls, **fields)
    return _Trial(names[-1:], [*_ASKED, calling, *results])


def _after_system(trial: _Trial) -> _Trial:
    return _Trial([*trial.texts, _SYSTEM], [_turn("system", _SYSTEM), *trial.turns])


_ASKED = [_turn("user", _USER)]
_FORMS: Sequence[tuple[Change, Callable[[Sequence[Turn]], _Trial]]] = (
    (_without_system, lambda _: _after_system(_Trial([], _ASKED))),
    (_with_one_system, _systems),
    (_alternating, lambda _: _Trial([_USER, _SYSTEM], [*_ASKED, _turn("user", _SYSTEM)])),
    (_each(_joined), lambda _: _calls("edgespec1", content=_SYSTEM, reasoning_content=_SYSTEM)),
    (_each(_with_null), lambda _: _calls("edgespec1")),
    (_one_call_each, lambda _: _calls("edgespec1", "edgespec2")),
    (_each(_with_short_ids), lambda _: _calls("call_edgespec01")),
    (_without_lost_system, lambda _: _after_system(_calls("edgespec1"))),
)
"""Other forms of conversations, which are used if the template shows a trial only so."""


def complete_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tools with a description and parameters, which OpenAI's format may lack and templates
    read."""
    completed = []
    for tool in tools:
        function = dict(tool.get("function") or tool)
        parameters = dict(function.get("parameters") or {"type": "object"})
        if parameters.get("type") == "object":
            parameters.setdefault("properties", {})
        description = function.get("description") or ""
        function |= {"description": description, "parameters": parameters}
        completed.append(dict(tool) | {"function": function} if "function" in tool else function)
    return completed


OFF: Mapping[str, Any] = MappingProxyType(
    {"enable_thinking": False, "thinking": False, "thinking_mode": "disabled"}
    | {"thinking_budget": 0, "thinking_option": "off"}
)
"""Variables by which templates turn reasoning off."""


def reasoning_variables(variables: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The variables of a template, in which the effort `none` is the least that it knows.

    A template that never asks whether `enable_thinking` is defined gets it, as from llama.cpp.
    """
    asks = (f"enable_thinking{sign}" for sign in (" is ", " |", "|"))
    if "not enable_thinking" in source and not any(ask in source for ask in asks):
        variables = {"enable_thinking": True, **variables}
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
