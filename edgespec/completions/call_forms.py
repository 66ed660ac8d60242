"""Forms of calls that families have of their own: a name, then arguments in JSON or one by one.

A table of forms; knows nothing of the text around a call.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgespec.chat.call_marks import BLOCKS, END, KEY, KEY_END, VALUE, VALUE_END
from edgespec.completions.argument_types import typed_value, written
from edgespec.completions.calls import (
    Parameters,
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
class Form:
    """A form of calls."""

    begin: str
    """The mark that begins a call; empty: its name does."""
    head: re.Pattern[str]
    """All up to the arguments, with the function's name."""
    end: str = ""
    """The mark that ends a call; empty: there is none."""
    within: str = ""
    """End mark of the block in which the form is looked for; empty: anywhere."""
    parameter: re.Pattern[str] | None = None
    """The mark in front of an argument, with its name; None: arguments are one object."""
    parameter_begins: tuple[str, ...] = ()
    parameter_end: str = ""

    @property
    def followers(self) -> tuple[str, ...]:
        """Marks that may follow a parameter."""
        return (*self.parameter_begins, *((self.end,) if self.end else ()), *BLOCKS.values())


def _native(begin: str, head: str, end: str = "", within: str = "") -> Form:
    return Form(begin, re.compile(head), end, within)


def _tagged(mark: str, opening: str, closing: str, begins: Sequence[str], end: str) -> Form:
    """A form whose names stand in marks, around the function and around each parameter."""
    head = re.compile(rf"{re.escape(mark)}(?P<name>[^<>\n\"]+){closing}")
    parameter = re.compile(rf"{opening}([^<>\n\"]+){closing}" if closing == ">" else opening)
    ending = f"</{mark.lstrip('<').partition('=')[0].partition(' ')[0]}>"
    return Form(mark, head, ending, "", parameter, tuple(begins), end)


_ATTRIBUTE = r'<param(?:eter)? name="([^"<>\n]+)"[^<>\n]*>'
_DSML = r'<｜DSML｜parameter name="([^"<>\n]+)"[^<>\n]*>'
_ATTRIBUTES = ('<parameter name="', '<param name="')
_OPEN_KEY, _OPEN_VALUE = "<arg_key:opensource>", "<arg_value:opensource>"
FORMS = (
    _native("[TOOL_CALLS]", rf"\[TOOL_CALLS\]\s*{_NAME}(?:\[CALL_ID\][\w-]*)?(?:\[ARGS\]|(?={{))"),
    _native(
        "<|tool_call_begin|>",
        rf"<\|tool_call_begin\|>\s*(?:functions\.)?{_NAME}(?::\d+)?\s*"
        r"<\|tool_call_argument_begin\|>",
        "<|tool_call_end|>",
    ),
    _native(
        "<｜tool▁call▁begin｜>",
        rf"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?(?!function<){_NAME}"
        r"(?:<｜tool▁sep｜>|\s*```json)",
        "<｜tool▁call▁end｜>",
    ),
    _native(
        "<|tool_call:begin|>",
        rf"<\|tool_call:begin\|>[^<]*<\|tool_call:name\|>{_NAME}<\|tool_call:args\|>",
        "<|tool_call:end|>",
    ),
    _native(
        "<|channel|>commentary to=",
        rf"<\|channel\|>commentary to=(?:functions\.)?{_NAME}[^<]*(?:<\|constrain\|>\w*)?"
        r"<\|message\|>",
        "<|call|>",
    ),
    _native(
        "to=functions.",
        rf"to=functions\.{_NAME}<\|channel\|>commentary[^<]*(?:<\|constrain\|>\w*)?"
        r"<\|message\|>",
        "<|call|>",
    ),
    _tagged("<function=", "<parameter=", ">", ("<parameter=",), "</parameter>"),
    _tagged('<function name="', _ATTRIBUTE, '">', _ATTRIBUTES, "</param>"),
    _tagged('<invoke name="', _ATTRIBUTE, '">', _ATTRIBUTES, "</parameter>"),
    _tagged(
        '<｜DSML｜invoke name="',
        _DSML,
        '">',
        ('<｜DSML｜parameter name="',),
        "</｜DSML｜parameter>",
    ),
    _native("call:", rf"call:{_NAME}(?={{)", within="<tool_call|>"),
    Form(
        "",
        re.compile(rf"{_NAME}\s*<tool_sep:opensource>"),
        "",
        "</tool_call:opensource>",
        re.compile(rf"{_OPEN_KEY}([^<]+)</arg_key:opensource>\s*{_OPEN_VALUE}"),
        (_OPEN_KEY,),
        "</arg_value:opensource>",
    ),
    Form(
        "",
        re.compile(rf"{_NAME}\s*(?=[<{{])"),
        "",
        END,
        re.compile(rf"{KEY}([^<]+){KEY_END}\s*{VALUE}"),
        (KEY,),
        VALUE_END,
    ),
)
"""Forms of Mistral, Kimi K2, DeepSeek (R1, V3, V3.1), Solar, gpt-oss (two), Qwen3-Coder, MiniCPM,
MiniMax, DeepSeek since V3.2, Gemma 4, Hunyuan and GLM."""
FORM_BEGINS = tuple(form.begin for form in FORMS if not form.within)
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


def read_form(
    text: str, at: int, is_last: bool, tools: Mapping[str, Parameters], end_marks: Sequence[str]
) -> Reading | None:
    """The call at `at` in one of the forms; None if there is none. Raises UnfinishedCall.

    Between `<tool_call>` marks, tagged ones may name any function; others name a tool.
    """
    for form in FORMS:
        if form.within and form.within not in end_marks:
            continue
        if not is_last and is_begun(text, at, (form.begin or "a",)):
            raise UnfinishedCall
        if not text.startswith(form.begin, at) or not (form.begin or text[at : at + 1].isalnum()):
            continue
        head = form.head.match(text, at)
        if head is None:
            return no_call(is_last or len(text) - at > _LONGEST_HEAD)
        name = head["name"].strip()
        if name not in tools and not (form.parameter and form.begin and END in end_marks):
            return None
        at = past_blanks(text, head.end())
        if form.parameter is None or text.startswith("{", at):
            return _object(form, name, text, at, is_last)
        return _parameters(form, name, text, at, is_last, tools.get(name))
    return None


def _object(form: Form, name: str, text: str, at: int, is_last: bool) -> Reading | None:
    """A call whose arguments are an object."""
    is_gemma = form.within == _GEMMA_END
    found = _gemma(text, at, is_last) if is_gemma else json_at(text, at, is_last)
    if found is None:
        return None
    arguments, end = found
    if not isinstance(arguments, dict):
        return None
    if form.end:
        ended = re.compile(rf"\s*(?:```\s*)?{re.escape(form.end)}").match(text, end)
        rest = text[past_blanks(text, end) :].lstrip("`\n ")
        if ended is None and not is_last and form.end.startswith(rest):
            raise UnfinishedCall
        end = ended.end() if ended else end
    return Reading([ToolCall(name, written(arguments))], end)


def _parameters(
    form: Form, name: str, text: str, at: int, is_last: bool, schema: Parameters
) -> Reading | None:
    """A call with each of its arguments between marks."""
    assert form.parameter is not None
    arguments: dict[str, Any] = {}
    known = (schema or {}).get("properties")
    while True:
        at = past_blanks(text, at)
        is_over = form.end and text.startswith(form.end, at)
        if is_over or text.startswith(tuple(BLOCKS.values()), at):
            return Reading([ToolCall(name, written(arguments))], at + len(form.end) * bool(is_over))
        begin = form.parameter.match(text, at)
        if begin is None:
            is_cut = is_begun(text, at, form.followers) or (
                text.startswith(form.parameter_begins, at) and len(text) - at < _LONGEST_HEAD
            )
            return no_call(is_last or not is_cut)
        key = begin[1].strip()
        others = {*known} - {key, *arguments} if isinstance(known, Mapping) else set[str]()
        end = _value_end(form, is_last, others).search(text, begin.end())
        if end is None:
            return no_call(is_last)
        value = text[begin.end() : end.start()]
        if value.startswith("\n"):  # values stand on lines of their own, or between the marks
            value = value[1:].removesuffix("\n")
        arguments[key] = typed_value(value, key, schema)
        at = end.end()


def _value_end(form: Form, is_last: bool, others: Collection[str]) -> re.Pattern[str]:
    """The end of a parameter, which a value may contain unless something else follows it.

    Without its mark it ends at a line with one of the `others`, or with the function's end.
    """
    last = [r"\Z"] if is_last else []
    followers = "|".join([*map(re.escape, form.followers), *last])
    found = [rf"{re.escape(form.parameter_end)}\s*(?={followers})"]
    if others:
        names = "|".join(map(re.escape, sorted(others)))
        begins = "|".join(map(re.escape, form.parameter_begins))
        found.append(rf'(?<=\n)(?=(?:{begins})(?:{names})[>"<])')
    if form.end:
        ends = "|".join([*map(re.escape, BLOCKS.values()), *last])
        found.append(rf"(?<=\n)(?={re.escape(form.end)}\s*(?:{ends}))")
    return re.compile("|".join(found))


def past_blanks(text: str, at: int) -> int:
    return at + len(text[at:]) - len(text[at:].lstrip())


def is_begun(text: str, at: int, marks: Sequence[str]) -> bool:
    """True if the text ends in the beginning of a mark, or in nothing."""
    rest = text[at : at + max(map(len, marks))]
    return at + len(rest) == len(text) and any(
        len(rest) < len(mark) and mark.startswith(rest) for mark in marks
    )


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
