"""Calls in the marks that families have of their own, however the text is cut into pieces."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.completions.tool_calls import CallSplitter

TOOLS = {
    "weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    },
    "now": None,
}
ROME, NOW = ("weather", {"city": "Rome", "days": 3}), ("now", {})
ARGUMENTS = '{"city": "Rome", "days": 3}'
DSML_CALL = (
    '<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">Rome'
    '</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n"
)
CALLS = {
    "Mistral": (f"[TOOL_CALLS]weather[ARGS]{ARGUMENTS}[TOOL_CALLS]now[ARGS]{{}}", [ROME, NOW]),
    "Mistral with ids": (f"[TOOL_CALLS]weather[CALL_ID]a1b2[ARGS]{ARGUMENTS}", [ROME]),
    "Mistral's list": (f'[TOOL_CALLS] [{{"name": "weather", "arguments": {ARGUMENTS}}}]', [ROME]),
    "Kimi": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
        f"<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|><|tool_call_begin|>"
        "functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        [ROME, NOW],
    ),
    "DeepSeek R1": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        f"{ARGUMENTS}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [ROME],
    ),
    "DeepSeek V3.1": (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{ARGUMENTS}"
        "<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
        [ROME, NOW],
    ),
    "DeepSeek V3.2": (
        f"<｜DSML｜function_calls>\n{DSML_CALL}</｜DSML｜function_calls>",
        [ROME],
    ),
    "Solar": (
        "<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>weather<|tool_call:args|>"
        f"{ARGUMENTS}<|tool_call:end|><|calls|>",
        [ROME],
    ),
    "gpt-oss": (
        "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>" + ARGUMENTS,
        [ROME],
    ),
    "gpt-oss, as its template": (
        f"to=functions.weather<|channel|>commentary json<|message|>{ARGUMENTS}<|call|>",
        [ROME],
    ),
    "Gemma": (
        '<|tool_call>call:weather{city:<|"|>Rome<|"|>,days:3}<tool_call|>'
        "<|tool_call>call:now{}<tool_call|>",
        [ROME, NOW],
    ),
    "LFM2": (
        "<|tool_call_start|>[weather(city='Rome', days=3), now()]<|tool_call_end|>",
        [ROME, NOW],
    ),
    "LFM2 in JSON": (
        f'<|tool_call_start|>[{{"name": "weather", "arguments": {ARGUMENTS}}}]<|tool_call_end|>',
        [ROME],
    ),
    "Cohere": (
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": '
        f"{ARGUMENTS}}}\n]<|END_ACTION|>",
        [ROME],
    ),
    "Hunyuan": (
        "<tool_calls:opensource>\n<tool_call:opensource>weather<tool_sep:opensource>\n"
        "<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Rome"
        "</arg_value:opensource>\n<arg_key:opensource>days</arg_key:opensource>\n"
        "<arg_value:opensource>3</arg_value:opensource>\n</tool_call:opensource>\n"
        "</tool_calls:opensource>",
        [ROME],
    ),
    "Apertus": (
        f'<|tools_prefix|>[{{"weather": {ARGUMENTS}}}, {{"now": {{}}}}]<|tools_suffix|>',
        [ROME, NOW],
    ),
    "Granite": (f'<|tool_call|>[{{"name": "weather", "arguments": {ARGUMENTS}}}]', [ROME]),
    "Llama": (f'<|python_tag|>{{"name": "weather", "parameters": {ARGUMENTS}}}', [ROME]),
}


def read(text: str, cuts=()) -> tuple[str, list[tuple[str, object]]]:
    splitter = CallSplitter(TOOLS)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[begin:end] for begin, end in zip(places, places[1:], strict=False)]  # noqa: RUF007
    told = "".join(map(splitter.push, pieces)) + splitter.finish()
    return told, [(call.name, json.loads(call.arguments)) for call in splitter.calls]


@pytest.mark.parametrize("family", CALLS)
def test_calls_of_the_family_are_read(family):
    text, calls = CALLS[family]
    assert read(text) == ("", calls)
    assert read(f"I look.\n{text}") == ("I look.", calls)


@pytest.mark.parametrize("family", CALLS)
def test_characters_one_by_one_are_read_alike(family):
    text, calls = CALLS[family]
    assert read(text, range(len(text))) == ("", calls)


@given(st.sampled_from(sorted(CALLS)), st.lists(st.integers(0, 300), max_size=6))
def test_where_the_pieces_are_cut_does_not_matter(family, cuts):
    text, calls = CALLS[family]
    assert read(f"I look. {text}", cuts) == ("I look.", calls)


@pytest.mark.parametrize("family", CALLS)
def test_a_cut_text_raises_nothing_and_loses_nothing(family):
    text, calls = CALLS[family]
    for end in range(len(text)):
        told, found = read(text[:end])
        assert found == calls[: len(found)]
        assert found or told == text[:end].rstrip() or told == text[:end]


@pytest.mark.parametrize(
    "text",
    [
        '[TOOL_CALLS]unknown[ARGS]{"a": 1}',
        "[TOOL_CALLS]weather[ARGS][1]",
        "[TOOL_CALLS]weather[ARGS]{nothing}",
        "<|tool_call_start|>[weather('Rome')]<|tool_call_end|>",
        "<|tool_call_start|>[weather(city=open('a'))]<|tool_call_end|>",
        "<|tool_call_start|>[unknown()]<|tool_call_end|>",
        "<|tool_call_start|>[" + "(" * 500 + "]<|tool_call_end|>",
        '<|tool_call>call:weather{city:<|"|>Rome}<tool_call|>',
        "<|tool_call>call:unknown{}<tool_call|>",
        "<|tools_prefix|>[1, 2]<|tools_suffix|>",
        "<|channel|>commentary to=functions.unknown<|message|>{}",
        "[TOOL",
        "to=functions",
        "[1, 2] is a list",
    ],
)
def test_what_is_no_call_of_a_tool_stays_text(text):
    assert read(text) == (text, [])
    assert read(text, range(len(text))) == (text, [])


def test_the_template_says_in_which_marks_calls_stand():
    text, calls = CALLS["Mistral"]
    for template, is_read in (("[TOOL_CALLS]", True), ("<tool_call>", False), ("no marks", True)):
        splitter = CallSplitter(TOOLS, template)
        assert (splitter.push(text) + splitter.finish() == "") == is_read
        assert len(splitter.calls) == (len(calls) if is_read else 0)


@pytest.mark.parametrize("family", ["Mistral", "DeepSeek R1", "DeepSeek V3.1", "Kimi"])
def test_slips_of_json_are_mended_in_each_family(family):
    text, calls = CALLS[family]
    slip, city = text.replace("Rome", r"a\d.py", 1), {"city": r"a\d.py", "days": 3}
    assert read(slip) == read(slip, range(len(slip))) == ("", [("weather", city), *calls[1:]])


@pytest.mark.parametrize("mark", ['<parameter name="city">', "<arg_key>city</arg_key><arg_value>"])
def test_line_breaks_at_the_ends_of_a_value_are_its_own(mark):
    begin, end = ('<invoke name="weather">', "</invoke>") if "=" in mark else ("weather", "")
    close = "</parameter>" if "=" in mark else "</arg_value>"
    text = f"<tool_call>{begin}{mark}\nRome\n{close}{end}</tool_call>"
    assert read(text) == ("", [("weather", {"city": "\nRome\n"})])
