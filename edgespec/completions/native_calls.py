"""Reads calls in marks of one family's own: the name behind a mark, then the arguments.

A table of forms; knows nothing of the text around a call.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Container
from dataclasses import dataclass
from typing import Any, Literal

from edgespec.completions.argument_types import written
from edgespec.completions.calls import Reading, ToolCall, UnfinishedCall, json_at, no_call

_NAME = r"(?P<name>[\w.-]+)"
_LONGEST_HEAD = 300
"""Most characters of the marks around a name."""


@dataclass(frozen=True, slots=True)
class NativeForm:
    """A form of calls: what begins one, and how its arguments are written."""

    begin: str
    """The mark that begins a call."""
    head: re.Pattern[str]
    """All up to the arguments, with the function's name."""
    end: str = ""
    """The mark that ends a call; empty: there is none."""
    arguments: Literal["json", "gemma", "python"] = "json"


NATIVE_FORMS = (
    NativeForm(
        "[TOOL_CALLS]",
        re.compile(rf"\[TOOL_CALLS\]\s*{_NAME}(?:\[CALL_ID\][\w-]*)?(?:\[ARGS\]|(?={{))"),
    ),
    NativeForm(
        "<|tool_call_begin|>",
        re.compile(
            rf"<\|tool_call_begin\|>\s*(?:functions\.)?{_NAME}(?::\d+)?\s*"
            r"<\|tool_call_argument_begin\|>"
        ),
        "<|tool_call_end|>",
    ),
    NativeForm(
        "<｜tool▁call▁begin｜>",
        re.compile(
            rf"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?(?!function<){_NAME}"
            r"(?:<｜tool▁sep｜>|\s*```json)"
        ),
        "<｜tool▁call▁end｜>",
    ),
    NativeForm(
        "<|tool_call:begin|>",
        re.compile(rf"<\|tool_call:begin\|>[^<]*<\|tool_call:name\|>{_NAME}<\|tool_call:args\|>"),
        "<|tool_call:end|>",
    ),
    NativeForm(
        "<|channel|>commentary to=",
        re.compile(
            rf"<\|channel\|>commentary to=(?:functions\.)?{_NAME}[^<]*(?:<\|constrain\|>\w*)?"
            r"<\|message\|>"
        ),
        "<|call|>",
    ),
    NativeForm(
        "to=functions.",
        re.compile(
            rf"to=functions\.{_NAME}<\|channel\|>commentary[^<]*(?:<\|constrain\|>\w*)?"
            r"<\|message\|>"
        ),
        "<|call|>",
    ),
    NativeForm("call:", re.compile(rf"call:{_NAME}(?={{)"), arguments="gemma"),
    NativeForm("[", re.compile(rf"\[(?={_NAME}\()"), arguments="python"),
)
"""Mistral's form, Kimi K2's, DeepSeek's (R1, V3, V3.1), Solar's, gpt-oss's two, Gemma 4's between
`<|tool_call>` marks, and LFM2's list of calls in Python between `<|tool_call_start|>` marks."""
NATIVE_BEGINS = tuple(form.begin for form in NATIVE_FORMS if form.arguments == "json")
"""Marks that begin a call wherever they stand."""
WITHIN = {"call:": "<tool_call|>", "[": "<|tool_call_end|>"}
"""End mark of the block in which a form is looked for, by what begins the form."""
_GEMMA_QUOTE = '<|"|>'
_NO_ESCAPE = re.compile(r"\\(?![\\'\"abfnrtvxNuU0-7\n])")
"""A backslash that begins no escape, about which Python's parser would warn."""
_BARE_KEY = re.compile(r"([{,]\s*)([^\s{}\[\],:\"]+)(\s*:)")


def native_form(text: str, at: int, end_marks: Container[str]) -> NativeForm | None:
    """The form that begins at `at`, between marks whose ends are `end_marks`."""
    begun = (form for form in NATIVE_FORMS if text.startswith(form.begin, at))
    form = next((form for form in begun if _fits(form, end_marks)), None)
    if form is not None and form.arguments == "python":
        return None if text[at + 1 :].lstrip().startswith("{") else form  # a list of objects
    return form


def may_begin(text: str, at: int, end_marks: Container[str]) -> bool:
    """True if the text ends in what may become the beginning of a form."""
    rest = text[at:]
    return any(
        len(rest) < len(form.begin) and form.begin.startswith(rest) and _fits(form, end_marks)
        for form in NATIVE_FORMS
    )


def _fits(form: NativeForm, end_marks: Container[str]) -> bool:
    return form.begin not in WITHIN or WITHIN[form.begin] in end_marks


def read_native(
    form: NativeForm, text: str, at: int, is_last: bool, names: Container[str]
) -> Reading | None:
    """The call of one of `names` at `at`; None if there is none. Raises UnfinishedCall."""
    head = form.head.match(text, at)
    if head is None:
        return no_call(is_last or len(text) - at > _LONGEST_HEAD)
    if form.arguments == "python":
        return _python(text, head.end() - 1, is_last, names)
    if head["name"] not in names:
        return None
    if form.arguments == "gemma":
        found = _gemma(text, head.end(), is_last)
    else:
        found = json_at(text, _past_blanks(text, head.end()), is_last)
    if found is None:
        return None
    arguments, end = found
    if not isinstance(arguments, dict):
        return None
    if form.end:
        ended = re.compile(rf"\s*(?:```\s*)?{re.escape(form.end)}").match(text, end)
        rest = text[_past_blanks(text, end) :].lstrip("`\n ")
        if ended is None and not is_last and form.end.startswith(rest):
            raise UnfinishedCall
        end = ended.end() if ended else end
    return Reading([ToolCall(head["name"], written(arguments))], end)


def _past_blanks(text: str, at: int) -> int:
    return at + len(text[at:]) - len(text[at:].lstrip())


def _gemma(text: str, at: int, is_last: bool) -> tuple[Any, int] | None:
    """An object with bare keys, whose strings stand between marks of their own."""
    block = text[at:].partition("<tool_call|>")
    if not block[1] and not is_last:
        raise UnfinishedCall
    pieces = block[0].split(_GEMMA_QUOTE)
    if len(pieces) % 2 == 0:
        return None
    told = (
        json.dumps(piece) if place % 2 else _BARE_KEY.sub(r'\1"\2"\3', piece)
        for place, piece in enumerate(pieces)
    )
    found = json_at("".join(told), 0, is_last=True)
    return None if found is None else (found[0], at + len(block[0]))


def _python(text: str, at: int, is_last: bool, names: Container[str]) -> Reading | None:
    """A list of calls in Python's notation."""
    block = text[at:].partition("<|tool_call_end|>")
    if not block[1] and not is_last:
        raise UnfinishedCall
    try:
        source = _NO_ESCAPE.sub(r"\\\\", block[0].strip())
        expression = ast.parse(source, mode="eval").body
        calls = [_python_call(one) for one in getattr(expression, "elts", ())]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    if not calls or not all(call.name in names for call in calls):
        return None
    return Reading(calls, at + len(block[0]))


def _python_call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with named arguments")
    name = ast.unparse(node.func)
    arguments = {str(one.arg): ast.literal_eval(one.value) for one in node.keywords}
    return ToolCall(name, written(arguments))
