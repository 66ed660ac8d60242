"""Messages in OpenAI's shape, as chat templates expect them."""

import pytest

from edgespec.chat.messages import checked
from edgespec.errors import UsageError
from sentences import refuses


def test_parts_of_text_become_one_text():
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    assert checked([{"role": "user", "content": parts}])[0]["content"] == "Hello"


def test_arguments_of_calls_become_objects():
    function = {"name": "add", "arguments": '{"a": 1}'}
    message = {"role": "assistant", "content": None, "tool_calls": [{"function": function}]}
    assert checked([message])[0]["tool_calls"][0]["function"]["arguments"] == {"a": 1}


@pytest.mark.parametrize("cut", ['{"city": "Ro', "{", '{"a": 1}}', "Rome"])
def test_the_arguments_of_a_call_that_was_cut_off_are_text(cut):
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": cut}}]}
    arguments = checked([message])[0]["tool_calls"][0]["function"]["arguments"]
    assert (arguments, str(arguments)) == ({"arguments": cut}, cut)


CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a":  1}'}}


def test_arguments_are_the_text_of_the_request_where_they_are_spliced():
    message = {"role": "assistant", "tool_calls": [CALL]}
    arguments = checked([message])[0]["tool_calls"][0]["function"]["arguments"]
    assert "<" + arguments + ">" == f"<{arguments}>" == '<{"a":  1}>'


@pytest.mark.parametrize("nothing", [None, "", " ", "null", {}, "{}"])
def test_no_arguments_are_an_empty_object(nothing):
    call = {"function": {"name": "now", "arguments": nothing}}
    arguments = checked([{"role": "assistant", "tool_calls": [call]}])[0]["tool_calls"][0][
        "function"
    ]["arguments"]
    assert arguments == {}
    assert str(arguments) == "{}"


@pytest.mark.parametrize("turn", [{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool"}])
@pytest.mark.parametrize("content", [{"content": None}, {}, {"content": []}])
def test_content_that_is_missing_is_empty(turn, content):
    assert checked([turn | content])[0]["content"] == ""


def test_our_own_answer_without_text_may_be_sent_back():
    answer = {"role": "assistant", "content": None, "refusal": None, "reasoning_content": "Hm."}
    assert checked([answer]) == [{"role": "assistant", "content": "", "reasoning_content": "Hm."}]


def test_fields_of_a_clients_dump_that_are_null_are_left_out():
    call = CALL | {"index": None}
    message = {"role": "assistant", "content": "a", "audio": None, "tool_calls": [call]}
    turn = checked([message])[0]
    assert "audio" not in turn
    assert "index" not in turn["tool_calls"][0]


def test_a_developer_is_the_system_for_a_template_that_knows_none():
    message = {"role": "developer", "content": "Be brief."}
    assert checked([message], knows_developer=False)[0]["role"] == "system"
    assert checked([message])[0]["role"] == "developer"


@pytest.mark.parametrize(
    "messages",
    [
        [],
        "Hello",
        {"role": "user"},
        ["Hello"],
        [{"role": "usr", "content": "a"}],
        [{"role": "user"}],
        [{"role": "user", "content": 1}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
        [{"role": "user", "content": ["a"]}],
        [{"role": "user", "content": "\ud800"}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}],
    ],
)
def test_what_is_no_conversation_is_refused_by_place(messages):
    with refuses(UsageError):
        checked(messages)
