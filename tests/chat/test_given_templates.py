"""Chat templates that the user gives."""

import pytest

from edgespec.chat.prompts import ChatPrompts
from edgespec.errors import UsageError
from edgespec.ports.chat_format import ChatFormat

HELLO = [{"role": "user", "content": "Hello"}]


def prompts(given: str) -> ChatPrompts:
    return ChatPrompts("fake", ChatFormat(), lambda text: [ord(c) for c in text], given, bos=[7])


def test_a_name_is_no_template():
    with pytest.raises(UsageError, match="'chatml' is not Jinja"):
        prompts("chatml")


def test_jinja_that_writes_no_first_token_gets_it_too():
    """The model's file asks for the token, whatever template is used; llama.cpp does so, too."""
    assert prompts("{{ messages[0].content }}").prompt(HELLO).tokens[:2] == (7, ord("H"))


def test_a_first_token_that_the_template_writes_is_not_doubled():
    prompt = prompts("\x07{{ messages[0].content }}").prompt(HELLO)
    assert prompt.tokens[:2] == (7, ord("H"))
