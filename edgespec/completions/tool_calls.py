"""Splits a model's answer into text and tool calls, incrementally.

Calls stand in the form of the model's family, and are JSON in a fence or in the text, which smaller
models (Qwen2.5-Coder, Llama) write instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from edgespec.chat.adapting import BEGIN, END
from edgespec.completions.calls import (
    Parameters,
    Reading,
    ToolCall,
    UnfinishedCall,
    begun_call,
    completed,
)
from edgespec.completions.families import FENCE, FENCE_BEGIN, FENCE_BEGUN, FUNCTION_END, CallReader

LONG_CHARACTERS = 2_000
"""Characters held back from which on they are read again only where something is closed."""
_CLOSING = re.compile(r"[}\]>`]")
_QUOTES = r"`\"'\u2018\u201c\xab"
_PROSE = re.compile(rf"(?:[\w\u2019\u201d\xbb{_QUOTES}=]|[{_QUOTES}]<[^<>\s]*>)\s*\Z")
"""End of a line that goes on: JSON in it is an example."""
_JSON = ("{", "[")
_LINE = 80
"""Most characters of the text before a call that are looked at."""
_IN_JSON = re.compile(r'[\[({]$|"[:,]$|[}\]\d],$')
"""End of a text behind which an object is part of a larger one, or an argument."""


def knows_calls(template: str) -> bool:
    """True if a chat template writes calls as JSON between marks."""
    others = ("]<]minimax[>[", "<function=", "<arg_key>")
    return BEGIN in template and not any(mark in template for mark in others)


class CallSplitter:
    """Splits an answer into text and calls.

    `tools` are the names of callable tools, or their parameters' schemas by name; `template` is the
    source of the chat template, without which a call may have any family's form. What is no call
    remains text.
    """

    def __init__(
        self, tools: Collection[str] | Mapping[str, Parameters] = (), template: str = ""
    ) -> None:
        self.calls: list[ToolCall] = []
        schemas = tools if isinstance(tools, Mapping) else dict.fromkeys(tools)
        self._optional = {name: _never_null(schema or {}) for name, schema in schemas.items()}
        """Arguments that are left out where they are null, by function."""
        self._reader = CallReader(schemas, template)
        marks = "|".join(map(re.escape, self._reader.begins)) or r"\b\B"
        self._opening = re.compile(
            rf"(?<![{_QUOTES}])(?:{marks})|{FENCE_BEGIN.pattern}|(?<![\w{_QUOTES}])[{{\[]"
        )
        """A mark that may begin a call, or a JSON value that is not part of a word or a
        quotation."""
        self._held = ""
        self._n_read = 0
        """Characters held when a begun call was looked for last."""
        self._drops_blanks = False
        self._end_marks: list[str] | None = None
        """Marks expected behind the latest call; None in text."""
        self._told = ""
        """The end of the text so far."""

    def begun(self, is_last: bool = False) -> ToolCall | None:
        """The call that the text ends in, with its arguments so far; None if there is none, or
        little is new in it, as all of it is read each time."""
        if not is_last and self._n_read <= len(self._held) < self._n_read + self._n_read // 64:
            return None
        self._n_read = len(self._held)
        return begun_call(self._held, self._optional)

    def push(self, text: str) -> str:
        """Append text and return the text that is certainly not part of a call."""
        self._held += text
        if len(self._held) > LONG_CHARACTERS and not _CLOSING.search(text):
            return ""  # a long call is not read again for every token of its arguments
        return self._split(is_last=False)

    def finish(self) -> str:
        """End the answer and return the text held back; the last call may lack its end mark."""
        return self._split(is_last=True) + self._take(len(self._held))

    def _split(self, is_last: bool) -> str:
        decided: list[str] = []
        try:
            while self._held:
                if self._end_marks is not None:
                    self._after_call(self._end_marks, is_last)
                else:
                    opening = self._opening.search(self._told + self._held, len(self._told))
                    if opening is None:
                        n_undecided = 0 if is_last else self._n_undecided()
                        decided.append(self._take(len(self._held) - n_undecided))
                        break
                    before = self._held[: opening.start() - len(self._told)]
                    decided.append(self._take(len(before.rstrip())))
                    decided.append(self._opened(opening[0], is_last))
        except UnfinishedCall:
            pass
        return "".join(decided)

    def _opened(self, mark: str, is_last: bool) -> str:
        """Read the call that `mark` begins; text instead if there is none."""
        blanks = self._held[: len(self._held) - len(self._held.lstrip())]
        is_part = mark in _JSON and (
            _IN_JSON.search("".join(self._told.split()))
            or ("\n" not in blanks and _PROSE.search(self._told.rpartition("\n")[2]))
        )
        reading = None if is_part else self._reader.read(self._held, is_last)
        if reading is not None:
            self._add(reading, [])
            return ""
        return self._take(len(blanks) + len(mark))

    def _after_call(self, end_marks: list[str], is_last: bool) -> None:
        """Drop the marks behind a call, and read the calls that follow it."""
        rest = self._held.lstrip("},;] \t\r\n" if end_marks else ",; \t\r\n")
        mark = next((mark for mark in end_marks if rest.startswith(mark)), None)
        if mark is not None:
            self._held = rest[len(mark) :]
            del end_marks[end_marks.index(mark) :]
            if not end_marks:
                # Qwen3-Coder may leave out the mark in front of a function, not the one behind it
                self._end_marks = [END] if mark == FUNCTION_END else None
            return
        if not is_last and any(
            mark.startswith(rest) for mark in (*end_marks, *self._reader.begins, FENCE)
        ):
            raise UnfinishedCall
        if any(mark.startswith(rest) for mark in end_marks):
            self._held = ""  # its end mark was cut off
            return
        if self._opening.match(rest):
            reading = self._reader.read(rest, is_last)
            if reading is not None:
                self._held = rest
                self._add(reading, end_marks)
                return
        self._held = rest if end_marks else self._held
        self._end_marks = None

    def _add(self, reading: Reading, end_marks: list[str]) -> None:
        calls = [*reading.calls]
        begun = begun_call(self._held[: reading.end], self._optional, is_last=True)
        arguments = completed(begun.arguments) if begun else None
        if begun and arguments and calls and calls[0].name == begun.name:
            calls[0] = ToolCall(begun.name, arguments)  # as they were told while it was written
        self.calls += calls
        self._held, self._drops_blanks = self._held[reading.end :], True
        self._told = ""
        self._end_marks = [*end_marks, *reading.end_marks]

    def _take(self, length: int) -> str:
        """Remove the first `length` held characters and return them without blanks after calls."""
        text, self._held = self._held[:length], self._held[length:]
        if self._drops_blanks:
            text = text.lstrip()
            self._drops_blanks = not text
        self._told = (self._told + text)[-_LINE:]
        return text

    def _n_undecided(self) -> int:
        """Length of the end of the text that may begin a call, with blanks before it."""
        fence = FENCE_BEGUN.search(self._held)
        begin = fence.start() if fence else len(self._held)
        for mark in self._reader.begins:
            part = (n for n in range(len(mark) - 1, 0, -1) if self._held.endswith(mark[:n]))
            begin = min(begin, len(self._held) - next(part, 0))
        return len(self._held) - len(self._held[:begin].rstrip())


def _never_null(schema: Mapping[str, Any]) -> list[str]:
    """Names of arguments that may be left out, and that a schema does not allow to be null."""
    properties, required = schema.get("properties"), schema.get("required")
    its = properties if isinstance(properties, Mapping) else {}
    needed = required if isinstance(required, list) else ()
    names = [name for name in its if name not in needed and not {*",{"} & {*name}]
    return [name for name in names if "null" not in json.dumps(its[name])]
