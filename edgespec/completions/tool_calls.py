"""Parses tool calls in a model's answer, in the format of Hermes' and Qwen's chat templates.

A call is JSON between two marks, or fenced JSON, which smaller models (Qwen2.5-Coder) write
instead. The parser is incremental.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgespec.grammar.specification import JSON_STYLE, Grammar, json_schema, lark_grammar

BEGIN, END = "<tool_call>", "</tool_call>"
FENCE, FENCE_END = "```json\n", "```"
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Name of the called function, and its arguments as JSON."""

    name: str
    arguments: str

    def as_dict(self, identity: str) -> dict[str, Any]:
        """The call in OpenAI's format."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": identity, "type": "function", "function": function}


def knows_calls(template: str) -> bool:
    """True if a chat template uses this format of calls."""
    return BEGIN in template


def call_grammar(tools: Sequence[Mapping[str, Any]]) -> Grammar:
    """Grammar of a call of one of `tools`, by their parameter schemas.

    `tools` are in OpenAI's format. Raises GrammarError for unsupported schemas.
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
    """Splits an answer into text and calls.

    An invalid call between marks remains text, and so does fenced JSON that calls none of `names`.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        self.calls: list[ToolCall] = []
        self._names = names
        self._held = ""
        self._drops_blanks = False

    def push(self, text: str) -> str:
        """Append text and return the text that is certainly not part of a call."""
        self._held += text
        decided = ""
        while True:
            before, begin, rest = self._next_mark()
            if not begin:
                return decided + self._take(len(before) - _undecided(before))
            inside, end, after = rest.partition(FENCE_END if begin == FENCE else END)
            if not end:
                return decided + self._take(len(before.rstrip()))
            call = self._call(begin, inside)
            if call is None:
                decided += self._take(len(self._held) - len(after))
            else:
                decided += self._take(len(before.rstrip()))
                self.calls.append(call)
                self._held, self._drops_blanks = after, True

    def finish(self) -> str:
        """End the answer and return the text held back; the last call may lack its end mark."""
        _before, begin, inside = self._next_mark()
        call = self._call(begin, inside) if begin else None
        if call is None:
            return self._take(len(self._held))
        self.calls.append(call)
        self._held = ""
        return ""

    def _next_mark(self) -> tuple[str, str, str]:
        """The held text split at its first mark: before, mark, after."""
        return min((self._held.partition(mark) for mark in (BEGIN, FENCE)), key=lambda p: len(p[0]))

    def _call(self, begin: str, inside: str) -> ToolCall | None:
        call = _read(inside)
        return call if call is None or begin == BEGIN or call.name in self._names else None

    def _take(self, length: int) -> str:
        """Remove the first `length` held characters and return them without blanks after calls."""
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
    """Length of the longest suffix of `text` that may begin a mark, with blanks before it."""
    ends = (n for mark in (BEGIN, FENCE) for n in range(len(mark)) if text.endswith(mark[:n]))
    longest = max(ends, default=0)
    rest = text[: len(text) - longest]
    return longest + len(rest) - len(rest.rstrip())
