"""Calls of tools in a model's answer, as templates of Hermes' and Qwen's kind have them written.

Each is JSON between two marks. Text in, text and calls out, while it is still coming.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgespec.grammar.specification import JSON_STYLE, Grammar, json_schema, lark_grammar

BEGIN, END = "<tool_call>", "</tool_call>"
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model wants called, and its arguments as JSON."""

    name: str
    arguments: str

    def as_dict(self, identity: str) -> dict[str, Any]:
        """In OpenAI's shape."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": identity, "type": "function", "function": function}


def knows_calls(template: str) -> bool:
    """True if the source of a chat template contains this format of calls."""
    return BEGIN in template


def call_grammar(tools: Sequence[Mapping[str, Any]]) -> Grammar:
    """Nothing but a call of one of these tools, in OpenAI's shape, by the schema of its parameters.

    Raises GrammarError for what cannot be written as JSON.
    """
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool["function"]["name"]},
                "arguments": tool["function"].get("parameters") or _NO_PARAMETERS,
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    schema = json_schema({"anyOf": calls, "x-guidance": JSON_STYLE})
    begin, end = json.dumps(f"{BEGIN}\n"), json.dumps(f"\n{END}")
    return lark_grammar(f"start: {begin} call {end}\ncall: %json {schema.source}\n")


class CallSplitter:
    """Takes an answer piece by piece; what stands between the marks and is no call stays text."""

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []
        self._held = ""
        self._drops_blanks = False

    def push(self, text: str) -> str:
        """Take more text and return what is decided to be no part of a call."""
        self._held += text
        decided = ""
        while True:
            before, begin, rest = self._held.partition(BEGIN)
            if not begin:
                return decided + self._take(len(before) - _undecided(before))
            inside, end, after = rest.partition(END)
            if not end:
                return decided + self._take(len(before.rstrip()))
            call = _read(inside)
            if call is None:
                decided += self._take(len(self._held) - len(after))
            else:
                decided += self._take(len(before.rstrip()))
                self.calls.append(call)
                self._held, self._drops_blanks = after, True

    def finish(self) -> str:
        """No more text will come: return what was held back. A call may lack its last mark."""
        _before, begin, inside = self._held.partition(BEGIN)
        call = _read(inside) if begin else None
        if call is None:
            return self._take(len(self._held))
        self.calls.append(call)
        self._held = ""
        return ""

    def _take(self, length: int) -> str:
        """The first `length` characters of what is held; blanks around calls belong to nothing."""
        text, self._held = self._held[:length], self._held[length:]
        if self._drops_blanks:
            text = text.lstrip()
            self._drops_blanks = not text
        return text


def _read(content: str) -> ToolCall | None:
    try:
        read = json.loads(content)
    except (json.JSONDecodeError, RecursionError):
        return None
    if not isinstance(read, dict) or not isinstance(read.get("name"), str):
        return None
    arguments = read.get("arguments", read.get("parameters", {}))
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(read["name"], arguments)


def _undecided(text: str) -> int:
    """Length of the longest end of `text` with which a call may begin, blanks before it too."""
    longest = max((n for n in range(len(BEGIN)) if text.endswith(BEGIN[:n])), default=0)
    rest = text[: len(text) - longest]
    return longest + len(rest) - len(rest.rstrip())
