"""Arguments of calls in streams: sent as they are written, and the same as in a whole answer."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.chat.prompts import ChatPrompt
from edgespec.completions.calls import begun_call
from edgespec.completions.protocols.answer_parts import Change, delta_of, message_of
from edgespec.completions.writing import MessageWriter

ARGUMENTS = {
    "city": 'Zürich "old" \\ town 🙂\n',
    "days": [1, -2.5, True, None, {}],
    "deep": {"a": {"b": []}},
}
CALL = '<tool_call>\n{"name": "add", "arguments": %s}\n</tool_call>'
CHARACTERS = st.characters(exclude_categories=["Cs"])
"""All that UTF-8 has; the default finds them by encoding each."""
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(CHARACTERS),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(CHARACTERS), inner),
    max_leaves=8,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _one_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda n_bytes: "1")


def writer(*names: str) -> MessageWriter:
    prompt = ChatPrompt("", (1,), None, "<tool_call>")
    return MessageWriter(prompt, names or ("add", "sub"))


def streamed(text: str, size: int = 1, *names: str) -> tuple[list[dict], MessageWriter]:
    """The deltas of a text that comes in pieces of `size` characters."""
    message = writer(*names)
    changes = []
    for begin in range(0, len(text), size):
        changes += message.push(text[begin : begin + size])
    return deltas_of(changes + message.finish()), message


def deltas_of(changes: list[Change]) -> list[dict]:
    return [delta for change in changes if (delta := delta_of(change)) is not None]


def joined(deltas: list[dict]) -> tuple[str, list[tuple[str, str, str]]]:
    """The content, and each call's id, name and arguments, put together as clients do."""
    content, calls = "", {}
    for delta in deltas:
        content += delta.get("content", "")
        for part in delta.get("tool_calls", ()):
            if "id" in part:
                assert part["index"] == len(calls) and part["type"] == "function"
                calls[part["index"]] = [part["id"], part["function"]["name"], ""]
            calls[part["index"]][2] += part["function"]["arguments"]
    return content, [tuple(call) for call in calls.values()]


def whole(text: str) -> tuple[str, list[tuple[str, str, str]]]:
    """The same of a whole answer."""
    message = writer()
    message.push(text)
    message.finish()
    calls = message_of(message.parts).get("tool_calls", ())
    found = [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in calls]
    return message_of(message.parts)["content"] or "", found


def test_arguments_come_as_they_are_written():
    deltas, _ = streamed(CALL % json.dumps(ARGUMENTS))
    first, *others = [delta["tool_calls"][0] for delta in deltas]
    assert first == {
        "index": 0,
        "id": "call_1",
        "type": "function",
        "function": {"name": "add", "arguments": ""},
    }
    assert len(others) > 40
    assert all(set(one) == {"index", "function"} for one in others)
    assert json.loads(joined(deltas)[1][0][2]) == ARGUMENTS


def test_text_behind_a_call_is_a_part_behind_it():
    """In one piece with the call's end, it had come before the last of its arguments."""
    message = writer()
    changes = message.push('<tool_call>\n{"name": "add", "arguments": {"a": 1')
    changes += message.push("}}\n</tool_call> Done.") + message.finish()
    assert [change.part.index for change in changes] == sorted(c.part.index for c in changes)
    assert [(part.kind, part.text) for part in message.parts] == [
        ("call", '{"a": 1}'),
        ("text", "Done."),
    ]


FORMS = [
    CALL % json.dumps(ARGUMENTS),
    f"I add. {CALL % json.dumps(ARGUMENTS, indent=2)} {CALL.replace('add', 'sub') % '{ }'}",
    CALL.removesuffix("\n</tool_call>") % '{"a":1}',
    '```json\n{\n  "name": "add",\n  "arguments": {"a" :1 , "b":[ ]}\n}\n```',
    CALL.replace("arguments", "parameters") % '{"a": 1}',
    '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>',
    CALL.replace("add", "unknown") % '{"a": 1}',
    CALL % '"text"',
    "no call, only { text",
    '```json\n{"name": "other", "arguments": {"a": 1}}\n```',
    '```json\n{"a": 1}\n```',
]


@pytest.mark.parametrize("text", FORMS)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_stream_has_what_a_whole_answer_has(text, size):
    deltas, message = streamed(text, size)
    assert joined(deltas) == whole(text)
    assert [
        call["function"]["arguments"] for call in message_of(message.parts).get("tool_calls", ())
    ] == [arguments for *_, arguments in whole(text)[1]]


@pytest.mark.parametrize(
    "text",
    [
        '```json\n{"name": "add", "parameters": {"type": "object", "properties": {}}}\n```',
        'Write \'{"name": "add", "arguments": {"a": 1}}\' there.',
        'Then {"name": "add", "arguments": {"a": 1}} is written.',
    ],
)
def test_definitions_and_examples_are_text_in_streams_too(text):
    assert joined(streamed(text)[0]) == (text, [])


@pytest.mark.parametrize("n_cut", [1, 20, 40])
def test_a_call_that_is_cut_off_stays_a_call(n_cut):
    text = (CALL % json.dumps({"a": "x" * 60}))[: -len("}\n</tool_call>") - n_cut]
    deltas, message = streamed(text)
    content, ((_, name, arguments),) = joined(deltas)
    assert (content, name) == ("", "add")
    assert json.dumps({"a": "x" * 60}).startswith(arguments) and len(arguments) > 20
    assert message.has_calls


def test_no_call_is_sent_before_its_name_is_known():
    deltas, _ = streamed((CALL % "{}")[:32])
    assert joined(deltas)[1] == []


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(st.text(CHARACTERS), VALUES, max_size=4),
    st.booleans(),
    st.sampled_from([None, 1]),
    st.sampled_from([1, 7]),
)
def test_arguments_are_what_is_written_up_to_their_end(value, is_ascii, indent, size):
    text = CALL % json.dumps(value, ensure_ascii=is_ascii, indent=indent)
    _, ((_, _, arguments),) = joined(streamed(text, size)[0])
    assert json.loads(arguments) == value


NAMES = ("a", "b", "needed", "maybe", 'o"d')
SCHEMA = {
    "properties": {
        name: {"type": ["string", "null"] if name == "maybe" else "string"} for name in NAMES
    },
    "required": ["needed"],
}


def kept(value: dict[str, Any]) -> dict[str, Any]:
    never = {"a", "b", 'o"d'}
    return {k: its for k, its in value.items() if its is not None or k not in never}


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.sampled_from(NAMES) | st.text(CHARACTERS, max_size=3), VALUES, max_size=5),
    st.sampled_from([None, 1]),
    st.sampled_from([1, 2, 7]),
)
def test_optional_arguments_that_cannot_be_null_are_left_out(value, indent, size):
    """OpenCode refuses calls with them, which a model of 1.5 billion parameters writes."""
    text = CALL % json.dumps(value, ensure_ascii=False, indent=indent)
    message = MessageWriter(ChatPrompt("", (1,), None, "<tool_call>"), {"add": SCHEMA})
    pieces = [text[begin : begin + size] for begin in range(0, len(text), size)]
    changes = [change for piece in pieces for change in message.push(piece)]
    _, ((_, _, arguments),) = joined(deltas_of(changes + message.finish()))
    assert json.loads(arguments) == kept(value)
    whole = MessageWriter(ChatPrompt("", (1,), None, "<tool_call>"), {"add": SCHEMA})
    whole.push(text)
    whole.finish()
    assert whole.parts[0].text == arguments


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_the_first_of_several_calls_in_a_list_is_told_once(size):
    told = '[{"name": "add", "arguments": {"a":1}}, {"name": "sub", "arguments": {"b":2}}]'
    _, calls = joined(streamed(told, size)[0])
    assert [json.loads(arguments) for _, _, arguments in calls] == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize("size", [1, 1000])
def test_null_in_an_argument_is_kept_whatever_its_name(size):
    text = CALL % '{"deep": {"a": null, "b": 1}, "a": null}'
    message = MessageWriter(ChatPrompt("", (1,), None, "<tool_call>"), {"add": SCHEMA})
    for begin in range(0, len(text), size):
        message.push(text[begin : begin + size])
    message.finish()
    assert json.loads(message.parts[0].text) == {"deep": {"a": None, "b": 1}}


SLIPS = {
    r'{"cmd": "grep -E \d+ \.x", "n": 2}': {"cmd": r"grep -E \d+ \.x", "n": 2},
    r'{"path": "C:\users\me", "n": None}': {"path": r"C:\users\me", "n": None},
    '{"cmd": "a", "flag": True}': {"cmd": "a", "flag": True},
    "{'cmd': 'a', \"b\": 'it\\'s'}": {"cmd": "a", "b": "it's"},
}


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("told", SLIPS)
def test_arguments_with_slips_are_told_as_json_once(told, size):
    """All of it had followed as JSON behind what was told as written."""
    _, calls = joined(streamed(CALL % told, size)[0])
    assert [json.loads(arguments) for _, _, arguments in calls] == [SLIPS[told]]


def test_a_long_call_is_not_read_again_for_each_token_and_is_told_to_its_end():
    """20 kB in pieces of 4 characters had taken three seconds of processor."""
    n_read, cut_off = 0, CALL[:-14] % json.dumps({"text": 'say "no" ' * 2000})[:-3]

    def begun(*arguments: Any) -> Any:
        nonlocal n_read
        n_read += 1
        return begun_call(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgespec.completions.tool_calls.begun_call", begun)
        _, message = streamed(cut_off, 4)
    assert 64 < n_read < 64 * 10
    assert cut_off.endswith(message.parts[0].text) and message.is_cut_off
