"""Chat templates by name, held against llama.cpp's own."""

import ctypes

import llama_cpp.llama_cpp as lib
import pytest

from edgespec.chat.named_templates import named_template, names
from edgespec.chat.prompts import ChatPrompts
from edgespec.chat.template import ChatTemplate
from edgespec.errors import ModelError, UsageError
from edgespec.ports.chat_format import ChatFormat

TALKS = {
    "with a system": ["system", "user", "assistant", "user"],
    "without": ["user", "assistant", "user"],
}
LEAVES_SYSTEM_OUT = {"yandex"}
"""Names whose template has no system turn: the text is told by the user, as with Jinja."""


def llama_names() -> list[str]:
    n_names = lib.llama_chat_builtin_templates(None, 0)
    found = (ctypes.c_char_p * n_names)()
    lib.llama_chat_builtin_templates(found, n_names)
    return [name.decode() for name in found]


def by_llama(name: str, messages: list[dict[str, str]], answers: bool) -> str:
    chat = (lib.llama_chat_message * len(messages))()
    for place, message in enumerate(messages):
        chat[place].role = message["role"].encode()
        chat[place].content = message["content"].encode()
    room = ctypes.create_string_buffer(4096)
    length = lib.llama_chat_apply_template(
        name.encode(), chat, len(messages), answers, room, len(room)
    )
    return room.raw[:length].decode()


def test_every_name_of_llama_cpp_is_known():
    assert list(names()) == sorted(llama_names())


@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("name", names())
def test_a_name_means_what_it_does_in_llama_cpp(name, talk):
    messages = [
        {"role": role, "content": f" {role} \n{{{{ {n} }}}} "} for n, role in enumerate(TALKS[talk])
    ]
    source = named_template(name)
    assert source is not None
    shown = messages
    if name in LEAVES_SYSTEM_OUT and messages[0]["role"] == "system":
        system, user, *others = messages
        shown = [{"role": "user", "content": f"{system['content']}\n{user['content']}"}, *others]
    for answers in (True, False):
        rendered = ChatTemplate(source).render(messages, add_generation_prompt=answers)
        assert rendered == by_llama(name, shown, answers)


def test_jinja_is_no_name():
    assert named_template("{{ messages }}") is None


def test_a_name_that_is_mistyped_is_told_the_nearest():
    with pytest.raises(UsageError, match=r"'chatlm' is neither Jinja nor a known name.*chatml"):
        named_template("chatlm")


def test_a_role_that_no_named_template_knows_is_refused():
    source = named_template("chatml")
    assert source is not None
    with pytest.raises(ModelError, match="knows the roles system, user and assistant"):
        ChatTemplate(source).render([{"role": "tool", "content": "4"}])


HELLO = [{"role": "user", "content": "Hello"}]


def prompts(given: str) -> ChatPrompts:
    return ChatPrompts("fake", ChatFormat(), lambda text: [ord(c) for c in text], given, bos=[7])


def test_a_named_template_begins_as_the_tokenizer_does():
    assert prompts("chatml").prompt(HELLO).tokens[:2] == (7, ord("<"))


def test_jinja_that_writes_no_first_token_gets_it_too():
    """The model's file asks for the token, whatever template is used; llama.cpp does so, too."""
    assert prompts("{{ messages[0].content }}").prompt(HELLO).tokens[:2] == (7, ord("H"))


def test_a_first_token_that_the_template_writes_is_not_doubled():
    prompt = prompts("\x07{{ messages[0].content }}").prompt(HELLO)
    assert prompt.tokens[:2] == (7, ord("H"))


def test_a_template_that_shows_no_message_is_refused():
    with pytest.raises(ModelError, match="shows no message, so that every question"):
        prompts("{{ bos_token }}Assistant:").prompt(HELLO)


def test_a_template_may_want_more_than_a_users_message():
    source = "{% if messages[0].role != 'system' %}{{ raise_exception('none') }}{% endif %}x"
    messages = [{"role": "system", "content": "Be brief."}, *HELLO]
    assert prompts(source).prompt(messages).text == "x"
