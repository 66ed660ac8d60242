"""Messages in OpenAI's shape, as chat templates expect them."""

import pytest

from edgespec.chat.messages import checked
from edgespec.errors import UsageError


def test_parts_of_text_become_one_text():
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    assert checked([{"role": "user", "content": parts}])[0]["content"] == "Hello"


def test_arguments_of_calls_become_objects():
    function = {"name": "add", "arguments": '{"a": 1}'}
    message = {"role": "assistant", "content": None, "tool_calls": [{"function": function}]}
    assert checked([message])[0]["tool_calls"][0]["function"]["arguments"] == {"a": 1}


def test_a_developer_is_the_system_for_a_template_that_knows_none():
    message = {"role": "developer", "content": "Be brief."}
    assert checked([message], knows_developer=False)[0]["role"] == "system"
    assert checked([message])[0]["role"] == "developer"


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([], "must be a list such as"),
        ("Hello", "must be a list such as"),
        ({"role": "user"}, "must be a list such as"),
        (["Hello"], r"messages\[0\] must be an object"),
        ([{"role": "usr", "content": "a"}], r"messages\[0\].role 'usr'.*did you mean 'user'"),
        ([{"role": "user"}], r"messages\[0\].content must be text"),
        ([{"role": "user", "content": 1}], r"messages\[0\].content must be text"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            r"content\[0\] is of type 'image_url': models here read text only",
        ),
        ([{"role": "user", "content": ["a"]}], r"content\[0\] must be an object"),
        ([{"role": "user", "content": "\ud800"}], "half a surrogate pair"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}],
            "function must be an object with name",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{"}}]}],
            "are not JSON",
        ),
    ],
)
def test_what_is_no_conversation_is_refused_by_place(messages, complaint):
    with pytest.raises(UsageError, match=complaint):
        checked(messages)
