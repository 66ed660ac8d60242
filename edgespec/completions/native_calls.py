"""Reads calls in marks of one family's own: the name behind a mark, then the arguments.

A table of forms; knows nothing of the text around a call.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass
from typing import Any

from edgespec.completions.argument_types import written
from edgespec.completions.calls import (
    Reading,
    ToolCall,
    UnfinishedCall,
    json_at,
    no_call,
    python_source,
    python_value,
)

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
    is_gemma: bool = False


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
    NativeForm("call:", re.compile(rf"call:{_NAME}(?={{)"), is_gemma=True),
)
"""Mistral's form, Kimi K2's, DeepSeek's (R1, V3, V3.1), Solar's, gpt-oss's two, and Gemma 4's
between `<|tool_call>` marks."""
NATIVE_BEGINS = tuple(form.begin for form in NATIVE_FORMS if not form.is_gemma)
"""Marks that begin a call wherever they stand."""
_GEMMA_END = "<tool_call|>"
_PYTHON_ENDS = ("<|tool_call_end|>", "<|python_end|>", "</function_calls>")
"""End marks of blocks of calls in Python: LFM2's, Llama 4's, OLMo 3's."""
_PYTHON = re.compile(r"\[?\s*(?P<name>[\w.]*)(?P<bracket>\(?)")
"""Beginning of a list of calls, or of the first call."""
_BRACKETS = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|['"\[\](){}]""", re.DOTALL)
"""Python's strings and brackets."""
_GEMMA_QUOTE = '<|"|>'
_BARE_KEY = re.compile(r"([{,]\s*)([^\s{}\[\],:\"]+)(\s*:)")


def native_form(text: str, at: int, end_marks: Container[str]) -> NativeForm | None:
    """The form that begins at `at`, between marks whose ends are `end_marks`."""
    begun = (form for form in NATIVE_FORMS if text.startswith(form.begin, at))
    return next((form for form in begun if not form.is_gemma or _GEMMA_END in end_marks), None)


def may_begin(text: str, at: int, end_marks: Container[str]) -> bool:
    """True if the text ends in what may become the beginning of a form."""
    rest = text[at:]
    return any(
        len(rest) < len(form.begin) and form.begin.startswith(rest)
        for form in NATIVE_FORMS
        if not form.is_gemma or _GEMMA_END in end_marks
    )


def read_native(
    form: NativeForm, text: str, at: int, is_last: bool, names: Container[str]
) -> Reading | None:
    """The call of one of `names` at `at`; None if there is none. Raises UnfinishedCall."""
    head = form.head.match(text, at)
    if head is None:
        return no_call(is_last or len(text) - at > _LONGEST_HEAD)
    if head["name"] not in names:
        return None
    if form.is_gemma:
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
    block = text[at:].partition(_GEMMA_END)
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


def read_python(
    text: str, at: int, is_last: bool, names: Collection[str], end_marks: Sequence[str]
) -> Reading | None:
    """Calls in Python's notation: a list of them, or one a line between marks. Raises
    UnfinishedCall."""
    end_mark = next((mark for mark in _PYTHON_ENDS if mark in end_marks), None)
    head = _PYTHON.match(text, at)
    if head is None or not (end_mark or text.startswith("[", at)):
        return None
    if not head["bracket"]:
        is_begun = any(name.startswith(head["name"]) for name in names)
        return no_call(is_last or not is_begun or head.end() < len(text))
    if head["name"] not in names:
        return None
    end = _list_end(text, at) if end_mark is None else text.find(end_mark, at)
    if end < 0:
        no_call(is_last)
        end = len(text)
    try:
        lines = ast.parse(python_source(text[at:end].strip())).body
        nodes = [node for line in lines for node in _elements(line)]
        calls = [_python_call(node) for node in nodes]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    return Reading(calls, end) if all(call.name in names for call in calls) else None


def _list_end(text: str, at: int) -> int:
    """The index behind the list at `at`; -1 if it does not end."""
    depth = 0
    for found in _BRACKETS.finditer(text, at):
        depth += (found[0] in "[({") - (found[0] in "])}")
        if depth == 0:
            return found.end()
        if found[0] in ("'", '"'):
            break
    return -1


def _elements(line: ast.stmt) -> Sequence[ast.expr]:
    if not isinstance(line, ast.Expr):
        raise TypeError("not a call")
    return line.value.elts if isinstance(line.value, ast.List) else [line.value]


def _python_call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with named arguments")
    arguments = {str(one.arg): python_value(one.value) for one in node.keywords}
    return ToolCall(ast.unparse(node.func), written(arguments))
