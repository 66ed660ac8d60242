"""Chat templates that the user gives."""

from edgespec.chat.prompts import ChatPrompts
from edgespec.errors import UsageError
from edgespec.ports.language_model import ChatFormat
from sentences import refuses

HELLO = [{"role": "user", "content": "Hello"}]
TALK = [
    {"role": "system", "content": "Be {{ brief }}."},
    *HELLO,
    {"role": "assistant", "content": " Hi \n"},
    {"role": "user", "content": "ä" * 3000},
]


def prompts(given: str) -> ChatPrompts:
    return ChatPrompts("fake", ChatFormat(), lambda text: [ord(c) for c in text], given, bos=[7])


def test_chatml_is_known_by_its_name():
    assert prompts("chatml").prompt(TALK).text == (
        "<|im_start|>system\nBe {{ brief }}.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        f"<|im_start|>assistant\n Hi \n<|im_end|>\n<|im_start|>user\n{'ä' * 3000}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_another_name_is_no_template():
    with refuses(UsageError):
        prompts("llama3")


def test_jinja_that_writes_no_first_token_gets_it_too():
    """The model's file asks for the token, whatever template is used; llama.cpp does so, too."""
    assert prompts("{{ messages[0].content }}").prompt(HELLO).tokens[:2] == (7, ord("H"))


def test_a_first_token_that_the_template_writes_is_not_doubled():
    prompt = prompts("\x07{{ messages[0].content }}").prompt(HELLO)
    assert prompt.tokens[:2] == (7, ord("H"))
