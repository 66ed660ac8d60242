"""Reads calls of tools as models write them: JSON, or values between marks (Qwen3-Coder, GLM).

Reads one place of a text at a time; knows nothing of the text around it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from edgespec.chat.call_marks import BLOCKS, END, OPENERS
from edgespec.completions.argument_types import written
from edgespec.completions.call_forms import (
    FORM_BEGINS,
    is_begun,
    past_blanks,
    read_form,
    read_python,
)
from edgespec.completions.calls import (
    Parameters,
    Reading,
    ToolCall,
    UnfinishedCall,
    json_at,
    lenient,
    no_call,
)

FENCE = "```"
FENCE_BEGIN = re.compile(r"```[\w+-]*[^\S\n]*(?:\n|(?=[{\[<]))")
FENCE_BEGUN = re.compile(r"(?:`{1,2}|```[\w+-]*[^\S\n]*)\Z")
_NAMES = ("name", "tool", "tool_name")
_ARGUMENTS = ("arguments", "parameters", "args", "input")
_KEYS = (*_NAMES, *_ARGUMENTS, "function", "type", "id", "index", "tool_call_id", "call_id")
_HEAD = re.compile(r'(?:\[\s*)?(?:\{\s*(?:["\'](\w*)(["\']?))?)?')
"""Beginning of an object, or of a list of objects, up to its first key."""
BEGINS = (*BLOCKS, *OPENERS, *FORM_BEGINS)
"""Marks that may begin a call, besides fences and JSON."""
_MISTRAL = "[TOOL_CALLS]"
_KEYED_END = "<|tools_suffix|>"
"""End mark of Apertus's calls, objects whose key is the function's name."""


class CallReader:
    """Reads calls of the tools by name, with the types that their schemas tell."""

    def __init__(self, tools: Mapping[str, Parameters]) -> None:
        self._tools = tools

    def read(self, text: str, at: int, is_last: bool) -> Reading | None:
        """The calls at `at`, behind the marks that open them; None if there are none.

        Calls between `<tool_call>` marks may name any function, others only a tool; without any
        marks JSON must have arguments. Raises UnfinishedCall until it is known what the text is,
        unless it `is_last`.
        """
        at, end_marks = _behind_marks(text, at)
        reading = read_python(text, at, is_last, self._tools, end_marks)
        is_form = text[at:] and _MISTRAL.startswith(text[at : at + len(_MISTRAL)])
        if reading is None and text.startswith(("{", "["), at) and not is_form:
            reading = self._json(text, at, is_last, end_marks)
        elif reading is None:
            reading = read_form(text, at, is_last, self._tools, end_marks)
            if reading is None and not is_last and _ends_in_mark(text, at):
                raise UnfinishedCall
        return reading and Reading(reading.calls, reading.end, end_marks)

    def _json(self, text: str, at: int, is_last: bool, end_marks: Sequence[str]) -> Reading | None:
        if text.startswith("{{", at):  # as Qwen2.5-Coder's template shows calls
            at += 1
        is_keyed = _KEYED_END in end_marks
        if not is_keyed and not _may_call(text, at):
            return None
        found = _json_between_marks(text, at, is_last, end_marks)
        if found is None:
            return None
        value, end = found
        values = value if isinstance(value, list) else [value]
        if is_keyed:
            if not all(isinstance(one, dict) for one in values):
                return None
            values = [{"name": name, "arguments": one[name]} for one in values for name in one]
        is_marked = any(mark != FENCE for mark in end_marks)
        calls = [_call(one, may_lack_arguments=is_marked) for one in values]
        if not all(call and (END in end_marks or call.name in self._tools) for call in calls):
            return None
        return Reading([call for call in calls if call], end)


def _ends_in_mark(text: str, at: int) -> bool:
    return bool(FENCE_BEGUN.match(text, at)) or is_begun(text, at, BEGINS)


def _behind_marks(text: str, at: int) -> tuple[int, list[str]]:
    """The index behind the marks that open calls at `at`, and the marks that end them."""
    end_marks: list[str] = []
    while True:
        at = past_blanks(text, at)
        mark = next((mark for mark in BLOCKS if text.startswith(mark, at)), None)
        if mark is not None:
            end_marks.append(BLOCKS[mark])
            at += len(mark)
        elif opener := next((one for one in OPENERS if text.startswith(one, at)), None):
            if opener in FORM_BEGINS and not _is_list(text, at + len(opener)):
                return at, end_marks
            at += len(opener)
        elif fence := FENCE_BEGIN.match(text, at):
            end_marks.append(FENCE)
            at = fence.end()
        else:
            return at, end_marks


def _is_list(text: str, at: int) -> bool:
    """True if a list of JSON calls follows."""
    return text[at:].lstrip().startswith("[")


def _json_between_marks(
    text: str, at: int, is_last: bool, end_marks: Sequence[str]
) -> tuple[Any, int] | None:
    """The JSON at `at`, and the index behind it; between marks of calls it may have slips."""
    found = json_at(text, at, is_last)
    ends = [mark for mark in end_marks if mark != FENCE]
    if found is not None or not ends:
        return found
    places = [place for mark in ends if (place := text.find(mark, at)) >= 0]
    if not places:
        no_call(is_last)
        return None
    try:
        return lenient(text[at : min(places)]), min(places)
    except ValueError:
        return None


def _may_call(text: str, at: int) -> bool:
    """True if the JSON at `at`, as far as it goes, may be a call."""
    head = _HEAD.match(text, at)
    key = head[1] if head else None
    if head is None or key is None:
        return head is not None and head.end() == len(text)
    return key in _KEYS if head[2] else any(known.startswith(key) for known in _KEYS)


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "object" and "properties" in value


def _call(value: Any, may_lack_arguments: bool) -> ToolCall | None:
    """The call that a JSON value is, in one of the shapes that models use."""
    if not isinstance(value, dict):
        return None
    function = value.get("function")
    if isinstance(function, dict):
        value = function
    names = [value.get(key) for key in (*_NAMES, "function")]
    name = next((one for one in names if isinstance(one, str) and one), None)
    found = [value[key] for key in _ARGUMENTS if key in value]
    is_description = "arguments" not in value and (
        "description" in value or _is_schema(value.get("parameters"))
    )
    if name is None or is_description or not (found or may_lack_arguments):
        return None
    arguments = (found[0] if found else None) or {}
    return ToolCall(name, arguments if isinstance(arguments, str) else written(arguments))
