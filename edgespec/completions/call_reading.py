"""Reads calls of tools as models write them: JSON, or values between marks (Qwen3-Coder, GLM).

Reads one place of a text at a time; knows nothing of the text around it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgespec.chat.call_marks import BLOCKS, END, KEY, KEY_END, OPENERS, VALUE, VALUE_END
from edgespec.completions.argument_types import typed_value, written
from edgespec.completions.calls import (
    Parameters,
    Reading,
    ToolCall,
    UnfinishedCall,
    json_at,
    lenient,
    no_call,
)
from edgespec.completions.native_calls import (
    NATIVE_BEGINS,
    may_begin,
    native_form,
    read_native,
    read_python,
)

FENCE = "```"
FENCE_BEGIN = re.compile(r"```[\w+-]*[^\S\n]*(?:\n|(?=[{\[<]))")
FENCE_BEGUN = re.compile(r"(?:`{1,2}|```[\w+-]*[^\S\n]*)\Z")
_BLANKS = re.compile(r"\s*")
_NAMES = ("name", "tool", "tool_name")
_ARGUMENTS = ("arguments", "parameters", "args", "input")
_KEYS = (*_NAMES, *_ARGUMENTS, "function", "type", "id", "index", "tool_call_id", "call_id")
_HEAD = re.compile(r'(?:\[\s*)?(?:\{\s*(?:["\'](\w*)(["\']?))?)?')
"""Beginning of an object, or of a list of objects, up to its first key."""
_LONGEST_OPENING = 300
"""Most characters of a parameter's name with the marks around it."""


@dataclass(frozen=True, slots=True)
class _Form:
    """Marks of one family around a function and around each of its parameters."""

    begin: str
    function: re.Pattern[str]
    function_end: str
    parameter_begins: tuple[str, ...]
    parameter: re.Pattern[str]
    parameter_end: str
    behind_name: tuple[str, ...] = ("",)
    """Marks behind a name without marks in front of it."""

    @property
    def followers(self) -> tuple[str, ...]:
        """Marks that may follow a parameter."""
        ends = (self.function_end,) if self.function_end else ()
        return (*self.parameter_begins, *ends, *BLOCKS.values())


_ATTRIBUTE = re.compile(r'<param(?:eter)? name="([^"<>\n]+)"[^<>\n]*>')
_ATTRIBUTE_BEGINS = ('<parameter name="', '<param name="')
FORMS = (
    _Form(
        "<function=",
        re.compile(r"<function=([^<>\n]+)>"),
        "</function>",
        ("<parameter=",),
        re.compile(r"<parameter=([^<>\n]+)>"),
        "</parameter>",
    ),
    _Form(
        '<function name="',
        re.compile(r'<function name="([^"<>\n]+)">'),
        "</function>",
        _ATTRIBUTE_BEGINS,
        _ATTRIBUTE,
        "</param>",
    ),
    _Form(
        '<invoke name="',
        re.compile(r'<invoke name="([^"<>\n]+)">'),
        "</invoke>",
        _ATTRIBUTE_BEGINS,
        _ATTRIBUTE,
        "</parameter>",
    ),
    _Form(
        '<｜DSML｜invoke name="',
        re.compile(r'<｜DSML｜invoke name="([^"<>\n]+)">'),
        "</｜DSML｜invoke>",
        ('<｜DSML｜parameter name="',),
        re.compile(r'<｜DSML｜parameter name="([^"<>\n]+)"[^<>\n]*>'),
        "</｜DSML｜parameter>",
    ),
)
"""Qwen3-Coder's form, MiniCPM's, MiniMax's, and DeepSeek's since V3.2."""
BEGINS = (*BLOCKS, *OPENERS, *NATIVE_BEGINS, *(form.begin for form in FORMS))
"""Marks that may begin a call, besides fences and JSON."""
_GLM = _Form(
    "",
    re.compile(r"([\w.-]+)\s*(?=[<{])"),
    "",
    (KEY,),
    re.compile(rf"{KEY}([^<]+){KEY_END}\s*{VALUE}"),
    VALUE_END,
)
_HUNYUAN = _Form(
    "",
    re.compile(r"([\w.-]+)\s*<tool_sep:opensource>"),
    "",
    ("<arg_key:opensource>",),
    re.compile(r"<arg_key:opensource>([^<]+)</arg_key:opensource>\s*<arg_value:opensource>"),
    "</arg_value:opensource>",
    ("<tool_sep:opensource>",),
)
_GLM_NAME = re.compile(r"[\w.-]+\s*")


_HUNYUAN_END = "</tool_call:opensource>"
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
        if reading is not None:
            pass
        elif native := native_form(text, at, end_marks):
            reading = read_native(native, text, at, is_last, self._tools)
        elif not is_last and may_begin(text, at, end_marks):
            raise UnfinishedCall
        elif text.startswith(("{", "["), at):
            reading = self._json(text, at, is_last, end_marks)
        elif form := next((form for form in FORMS if text.startswith(form.begin, at)), None):
            reading = self._marked(form, text, at, is_last, END in end_marks)
        elif (form := _form_of_names(end_marks)) and (name := _GLM_NAME.match(text, at)):
            is_cut = _is_begun(text, name.end(), form.behind_name)
            reading = no_call(is_last) if is_cut else self._marked(form, text, at, is_last)
        elif FENCE_BEGUN.match(text, at) or _is_begun(text, at, BEGINS):
            return no_call(is_last)
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

    def _marked(
        self, form: _Form, text: str, at: int, is_last: bool, is_any: bool = False
    ) -> Reading | None:
        """A call in one of the forms that write each argument between marks; `is_any`: it may name
        any function."""
        opening = form.function.match(text, at)
        if opening is None:
            is_name = form.begin and len(text) - at < _LONGEST_OPENING and ">" not in text[at:]
            return no_call(is_last or not is_name)
        name, at = opening[1].strip(), opening.end()
        if not is_any and name not in self._tools:
            return None
        arguments: dict[str, Any] = {}
        while True:
            at = _past_blanks(text, at)
            if text.startswith("{", at) and not arguments:
                return self._object_between_marks(form, name, text, at, is_last)
            if form.function_end and text.startswith(form.function_end, at):
                return Reading([ToolCall(name, written(arguments))], at + len(form.function_end))
            if text.startswith(tuple(BLOCKS.values()), at):
                return Reading([ToolCall(name, written(arguments))], at)
            begin = form.parameter.match(text, at)
            if begin is None:
                is_cut = _is_begun(text, at, form.followers) or (
                    text.startswith(form.parameter_begins, at) and len(text) - at < _LONGEST_OPENING
                )
                return no_call(is_last or not is_cut)
            key = begin[1].strip()
            others = _property_names(self._tools.get(name)) - {key, *arguments}
            end = _value_end(form, is_last, others).search(text, begin.end())
            if end is None:
                return no_call(is_last)
            value = text[begin.end() : end.start()]
            if value.startswith("\n"):  # values stand on lines of their own, or between the marks
                value = value[1:].removesuffix("\n")
            arguments[key] = typed_value(value, key, self._tools.get(name))
            at = end.end()

    def _object_between_marks(
        self, form: _Form, name: str, text: str, at: int, is_last: bool
    ) -> Reading | None:
        found = json_at(text, at, is_last)
        if found is None:
            return no_call(is_last)
        arguments, at = found
        at = _past_blanks(text, at)
        if form.function_end and text.startswith(form.function_end, at):
            at += len(form.function_end)
        elif _is_begun(text, at, form.followers) and not is_last:
            raise UnfinishedCall
        return Reading([ToolCall(name, written(arguments))], at)


def _behind_marks(text: str, at: int) -> tuple[int, list[str]]:
    """The index behind the marks that open calls at `at`, and the marks that end them."""
    end_marks: list[str] = []
    while True:
        at = _past_blanks(text, at)
        mark = next((mark for mark in BLOCKS if text.startswith(mark, at)), None)
        if mark is not None:
            end_marks.append(BLOCKS[mark])
            at += len(mark)
        elif opener := next((one for one in OPENERS if text.startswith(one, at)), None):
            if native_form(text, at, end_marks) and not _is_list(text, at + len(opener)):
                return at, end_marks
            at += len(opener)
        elif fence := FENCE_BEGIN.match(text, at):
            end_marks.append(FENCE)
            at = fence.end()
        else:
            return at, end_marks


def _form_of_names(end_marks: Container[str]) -> _Form | None:
    """The form whose calls begin with a name, between marks that end in `end_marks`."""
    if END in end_marks:
        return _GLM
    return _HUNYUAN if _HUNYUAN_END in end_marks else None


def _is_list(text: str, at: int) -> bool:
    """True if a list of JSON calls follows."""
    return text[at:].lstrip().startswith("[")


def _past_blanks(text: str, at: int) -> int:
    match = _BLANKS.match(text, at)
    return match.end() if match else at


def _is_begun(text: str, at: int, marks: Sequence[str]) -> bool:
    """True if the text ends in the beginning of a mark, or in nothing."""
    rest = text[at : at + max(map(len, marks))]
    return at + len(rest) == len(text) and any(mark.startswith(rest) for mark in marks)


def _value_end(form: _Form, is_last: bool, others: Collection[str]) -> re.Pattern[str]:
    """The end of a parameter, which a value may contain unless something else follows it.

    Without its mark it ends at a line with one of the `others`, or with the function's end.
    """
    followers = [*map(re.escape, form.followers), *([r"\Z"] if is_last else [])]
    found = [rf"{re.escape(form.parameter_end)}\s*(?={'|'.join(followers)})"]
    if others:
        names = "|".join(map(re.escape, sorted(others)))
        begins = "|".join(map(re.escape, form.parameter_begins))
        found.append(rf'(?<=\n)(?=(?:{begins})(?:{names})[>"<])')
    if form.function_end:
        ends = "|".join([*map(re.escape, BLOCKS.values()), *([r"\Z"] if is_last else [])])
        found.append(rf"(?<=\n)(?={re.escape(form.function_end)}\s*(?:{ends}))")
    return re.compile("|".join(found))


def _property_names(parameters: Parameters) -> set[str]:
    properties = (parameters or {}).get("properties")
    return {*properties} if isinstance(properties, Mapping) else set()


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
