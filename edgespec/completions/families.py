"""Forms in which models write calls of tools, and what reads a call at the beginning of a text.

A call is JSON, Python, or a function's name with an object or with tagged values behind it, between
marks of which those in the model's chat template are looked for. Knows nothing of the text around a
call.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from edgespec.chat.adapting import BEGIN, END
from edgespec.completions.calls import (
    Parameters,
    Reading,
    ToolCall,
    UnfinishedCall,
    json_at,
    lenient,
    no_call,
    python_source,
    python_value,
    typed_value,
    written,
)

FENCE = "```"
FENCE_BEGIN = re.compile(r"```[\w+-]*[^\S\n]*(?:\n|(?=[{\[<]))")
FENCE_BEGUN = re.compile(r"(?:`{1,2}|```[\w+-]*[^\S\n]*)\Z")
FUNCTION_END = "</function>"
BLOCKS: Mapping[str, str] = {
    BEGIN: END,
    "<tool_calls>": "</tool_calls>",
    "<TOOLCALL>": "</TOOLCALL>",
    "<tools>": "</tools>",
    "<function_call>": "</function_call>",
    "<minimax:tool_call>": "</minimax:tool_call>",
    "<seed:tool_call>": "</seed:tool_call>",
    "<｜DSML｜function_calls>": "</｜DSML｜function_calls>",
    "<｜DSML｜tool_calls>": "</｜DSML｜tool_calls>",
    "<tool_calls:opensource>": "</tool_calls:opensource>",
    "<tool_call:opensource>": "</tool_call:opensource>",
    "<|START_ACTION|>": "<|END_ACTION|>",
    "<|tools_prefix|>": "<|tools_suffix|>",
    "<|tool_calls_section_begin|>": "<|tool_calls_section_end|>",
    "<|tool_call_start|>": "<|tool_call_end|>",
    "<｜tool▁calls▁begin｜>": "<｜tool▁calls▁end｜>",
    "<|tool_calls|>": "<|calls|>",
    "<|tool_call>": "<tool_call|>",
    "<|python_start|>": "<|python_end|>",
    "<function_calls>": "</function_calls>",
}
"""Mark that ends a block of calls, by the mark that begins it."""
_ENDS: Mapping[str, str] = {
    **BLOCKS,
    **dict.fromkeys(("[TOOL_CALLS]", "<|tool_call|>", "<|python_tag|>", "functools"), ""),
    "<|tool_call_begin|>": "<|tool_call_end|>",
    "<｜tool▁call▁begin｜>": "<｜tool▁call▁end｜>",
    "<|tool_call:begin|>": "<|tool_call:end|>",
    "<|channel|>commentary to=": "<|call|>",
    "to=functions.": "<|call|>",
    "<function=": FUNCTION_END,
    '<function name="': FUNCTION_END,
    '<invoke name="': "</invoke>",
    '<｜DSML｜invoke name="': "</｜DSML｜invoke>",
}
"""Mark that ends calls, by the mark that begins them; empty if none does."""
_LONGEST_HEAD = 300
"""Most characters between a mark and the arguments."""
_MOST_WORDS = 4
"""Most words there: the function's name, an id, and what families write besides."""
_MARK = re.compile(r"<[^<>]*>|\[[A-Z_]+\]")
_KEY = r"[^<>\n\"]+"
_PARAMETER = (
    r"<(?:(?:｜DSML｜)?param(?:eter)?(?:=| name=\")(%s)(?:\"[^<>\n]*)?>"
    r"|arg_key(?::opensource)?>(%s)</arg_key(?::opensource)?>\s*<arg_value(?::opensource)?>)"
)
"""Pattern of the mark in front of an argument, `%s` for its name."""
_ANY_PARAMETER = re.compile(_PARAMETER % (_KEY, _KEY))
_VALUE_END = r"</(?:(?:｜DSML｜)?param(?:eter)?|arg_value(?::opensource)?)>"
_NAMES = ("name", "tool", "tool_name")
_ARGUMENTS = ("arguments", "parameters", "args", "input")
_FIRST_KEYS = (*_NAMES, *_ARGUMENTS, "function", "type", "id", "index", "tool_call_id", "call_id")
_JSON_HEAD = re.compile(r'(?:\[\s*)?(?:\{\s*(?:["\'](\w*)(["\']?))?)?')
"""Beginning of an object, or of a list of objects, up to its first key."""
_KEYED_END = "<|tools_suffix|>"
"""End mark of Apertus's calls, objects whose key is the function's name."""
_PYTHON_ENDS = ("<|tool_call_end|>", "<|python_end|>", "</function_calls>")
"""End marks of blocks of calls in Python: LFM2's, Llama 4's, OLMo 3's."""
_PYTHON_HEAD = re.compile(r"\[?\s*(?P<name>[\w.]*)(?P<bracket>\(?)")
"""Beginning of a list of calls, or of the first call."""
_GEMMA_QUOTE, _GEMMA_END = '<|"|>', "<tool_call|>"
_BARE_KEY = re.compile(r"([{,]\s*)([^\s{}\[\],:\"]+)(\s*:)")


class CallReader:
    """Reads calls of the tools by name, with the types that their schemas tell.

    The `template` says in which marks they stand; without one they may stand in any. Calls between
    `<tool_call>` marks may name any function, others only a tool.
    """

    def __init__(self, tools: Mapping[str, Parameters], template: str) -> None:
        self._tools = tools
        self.begins = tuple(mark for mark in _ENDS if _stands_in(mark, template)) or tuple(_ENDS)
        """Marks that may begin a call, besides fences and JSON."""

    def read(self, text: str, is_last: bool) -> Reading | None:
        """The calls that begin a text, behind the marks that open them; None if there are none.

        Without any marks JSON must have arguments. Raises UnfinishedCall until it is known what
        the text is, unless it `is_last`.
        """
        at, marks = self._behind_marks(text)
        end_marks = [end for mark in marks if (end := _ENDS.get(mark, FENCE))]
        if not is_last and (self._is_begun(text, at) or FENCE_BEGUN.match(text, at)):
            raise UnfinishedCall
        reading = self._python(text, at, is_last, end_marks)
        if reading is None and text.startswith(("{", "["), at):
            reading = self._json(text, at, is_last, end_marks)
        elif reading is None and {*marks} - {FENCE}:
            ends = "|".join(map(re.escape, [*end_marks, *BLOCKS.values()]))
            head = re.compile(
                rf"([^<>\n\"{{]+?)\s*(?:\"?>|<tool_sep:opensource>)?\s*"
                rf"(?={_ANY_PARAMETER.pattern}|{ends})"
            ).match(text, at)
            if head is not None:
                reading = self._tagged(text, head, is_last, end_marks, ends)
            else:
                reading = self._named(text, at, is_last, end_marks)
        return reading and replace(reading, end_marks=[*end_marks, *reading.end_marks])

    def _is_begun(self, text: str, at: int) -> bool:
        """True if the text ends at `at`, or in a part of a mark there."""
        rest = text[at : at + _LONGEST_HEAD]
        return any(len(rest) < len(mark) and mark.startswith(rest) for mark in self.begins)

    def _behind_marks(self, text: str) -> tuple[int, list[str]]:
        """The index behind the marks that open calls, and the marks."""
        at, marks = 0, list[str]()
        while True:
            at = _past_blanks(text, at)
            found = [mark for mark in self.begins if text.startswith(mark, at)]
            if fence := FENCE_BEGIN.match(text, at):
                marks.append(FENCE)
                at = fence.end()
            elif found:
                marks.append(max(found, key=len))
                at += len(marks[-1])
            else:
                return at, marks

    def _tagged(
        self, text: str, head: re.Match[str], is_last: bool, end_marks: Sequence[str], ends: str
    ) -> Reading | None:
        """A call with each of its arguments between marks."""
        name, at = head[1], head.end()
        if name not in self._tools and not {END, FUNCTION_END} <= {*end_marks}:
            return None
        arguments: dict[str, Any] = {}
        schema = self._tools.get(name)
        known = (schema or {}).get("properties")
        while True:
            at = _past_blanks(text, at)
            if re.compile(ends).match(text, at):
                return Reading([ToolCall(name, written(arguments))], at)
            begin = _ANY_PARAMETER.match(text, at)
            if begin is None:
                return no_call(is_last or text[at : at + 1] not in ("", "<"))
            key = (begin[1] or begin[2]).strip()
            others = {*known} - {key, *arguments} if isinstance(known, Mapping) else set[str]()
            end = _value_end(ends, is_last, others).search(text, begin.end())
            if end is None:
                return no_call(is_last)
            value = text[begin.end() : end.start()]
            if value.startswith("\n") and begin[0].startswith("<param") and '"' not in begin[0]:
                value = value[1:].removesuffix("\n")  # values stand on lines of their own
            arguments[key] = typed_value(value, key, schema)
            at = end.end()

    def _named(self, text: str, at: int, is_last: bool, end_marks: Sequence[str]) -> Reading | None:
        """A call whose arguments are an object behind the function's name."""
        head, brace, _ = text[at : at + _LONGEST_HEAD].partition("{")
        words = re.findall(r"[\w.-]+", _MARK.sub(" ", head))
        names = [word.removeprefix("functions.") for word in words]
        name = next((one for one in names if one in self._tools), None)
        if not brace or name is None or len(words) > _MOST_WORDS:
            is_over = len(head) == _LONGEST_HEAD or any(end in head for end in end_marks)
            return no_call(is_last or bool(brace) or is_over)
        at += len(head)
        if _GEMMA_END in end_marks:
            found = _gemma(text, at, is_last)
        else:
            ends = [*end_marks, *self.begins, *([FENCE] if FENCE in head else [])]
            found = _mended_json(text, at, is_last, ends)
        if found is None or not isinstance(found[0], dict):
            return None
        call = ToolCall(name, written(found[0]))
        return Reading([call], found[1], [FENCE] if FENCE in head else [])

    def _json(self, text: str, at: int, is_last: bool, end_marks: Sequence[str]) -> Reading | None:
        if text.startswith("{{", at):  # as Qwen2.5-Coder's template shows calls
            at += 1
        is_keyed = _KEYED_END in end_marks
        if not is_keyed and not _may_call(text, at):
            return None
        ends = [mark for mark in end_marks if mark != FENCE]
        found = _mended_json(text, at, is_last, ends) if ends else json_at(text, at, is_last)
        if found is None:
            return None
        value, end = found
        values = value if isinstance(value, list) else [value]
        if is_keyed and all(isinstance(one, dict) for one in values):
            values = [{"name": name, "arguments": one[name]} for one in values for name in one]
        calls = [_call(one, may_lack_arguments=bool(ends)) for one in values]
        if not all(call and (END in end_marks or call.name in self._tools) for call in calls):
            return None
        return Reading([call for call in calls if call], end)

    def _python(
        self, text: str, at: int, is_last: bool, end_marks: Sequence[str]
    ) -> Reading | None:
        """Calls in Python's notation: a list of them, or one a line between marks."""
        end_mark = next((mark for mark in _PYTHON_ENDS if mark in end_marks), None)
        head = _PYTHON_HEAD.match(text, at)
        if head is None or not (end_mark or text.startswith("[", at)):
            return None
        if not head["bracket"]:
            is_begun = any(name.startswith(head["name"]) for name in self._tools)
            return no_call(is_last or not is_begun or head.end() < len(text))
        if head["name"] not in self._tools:
            return None
        end = text.find(end_mark, at) if end_mark else -1
        if end < 0:
            no_call(is_last)
            end = len(text) if end_mark else text.rfind("]") + 1
        try:
            lines = ast.parse(python_source(text[at:end].strip())).body
            calls = [_python_call(node) for line in lines for node in _elements(line)]
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            return None
        are_known = bool(calls) and all(call.name in self._tools for call in calls)
        return Reading(calls, end) if are_known else None


def _stands_in(mark: str, template: str) -> bool:
    """True if a template has the mark, or the parts from which some put it together."""
    return all(part.strip('"') in template for part in re.split("(:opensource|｜DSML｜|to=)", mark))


def _value_end(ends: str, is_last: bool, others: Collection[str]) -> re.Pattern[str]:
    """The end of a parameter, which a value may contain unless something else follows it.

    Without its mark it ends at a line with one of the `others`, or with the function's end.
    """
    last = rf"{ends}|\Z" if is_last else ends
    names = "|".join(map(re.escape, sorted(others)))
    return re.compile(
        rf"{_VALUE_END}\s*(?={_ANY_PARAMETER.pattern}|{last})"
        + (rf"|(?<=\n)(?={_PARAMETER % (names, names)})" if names else "")
        + rf"|(?<=\n)(?=(?:{ends})\s*(?:{last}))"
    )


def _mended_json(text: str, at: int, is_last: bool, ends: Sequence[str]) -> tuple[Any, int] | None:
    """The JSON value at `at`, which may have slips, and the index behind it: one of the `ends`."""
    if found := json_at(text, at, is_last):
        return found
    places = [place for mark in ends if (place := text.find(mark, at)) >= 0]
    no_call(is_last or bool(places))
    end = min(places, default=len(text))
    with suppress(ValueError):
        return lenient(text[at:end], may_lack_brackets=bool(places)), end
    return None


def _past_blanks(text: str, at: int) -> int:
    return at + len(text[at:]) - len(text[at:].lstrip())


def _gemma(text: str, at: int, is_last: bool) -> tuple[Any, int] | None:
    """An object with bare keys, whose strings stand between marks of their own."""
    block = text[at:].partition(_GEMMA_END)
    no_call(is_last or bool(block[1]))
    pieces = block[0].split(_GEMMA_QUOTE)
    if len(pieces) % 2 == 0:
        return None
    told = (
        json.dumps(piece) if place % 2 else _BARE_KEY.sub(r'\1"\2"\3', piece)
        for place, piece in enumerate(pieces)
    )
    found = json_at("".join(told), 0, is_last=True)
    return None if found is None else (found[0], at + len(block[0]))


def _may_call(text: str, at: int) -> bool:
    """True if the JSON at `at`, as far as it goes, may be a call."""
    head = _JSON_HEAD.match(text, at)
    key = head[1] if head else None
    if head is None or key is None:
        return head is not None and head.end() == len(text)
    return key in _FIRST_KEYS if head[2] else any(known.startswith(key) for known in _FIRST_KEYS)


def _call(value: Any, may_lack_arguments: bool) -> ToolCall | None:
    """The call that a JSON value is, in one of the shapes that models use; None for a definition
    of a tool."""
    if not isinstance(value, dict):
        return None
    if isinstance(function := value.get("function"), dict):
        value = function
    names = [value.get(key) for key in (*_NAMES, "function")]
    name = next((one for one in names if isinstance(one, str) and one), None)
    found = [value[key] for key in _ARGUMENTS if key in value]
    if name is None or not (found or may_lack_arguments):
        return None
    arguments = (found[0] if found else None) or {}
    is_schema = isinstance(arguments, dict) and {"type", "properties"} <= arguments.keys()
    if "arguments" not in value and ("description" in value or is_schema):
        return None
    return ToolCall(name, arguments if isinstance(arguments, str) else written(arguments))


def _elements(line: ast.stmt) -> Sequence[ast.expr]:
    if not isinstance(line, ast.Expr):
        raise TypeError("not a call")
    return line.value.elts if isinstance(line.value, ast.List) else [line.value]


def _python_call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with named arguments")
    arguments = {str(one.arg): python_value(one.value) for one in node.keywords}
    return ToolCall(ast.unparse(node.func), written(arguments))
