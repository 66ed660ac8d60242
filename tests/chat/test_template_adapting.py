"""Conversations in the form that a template shows: system messages, parts, calls."""

import pytest

from edgespec.chat.template import ChatTemplate
from edgespec.errors import ModelError
from sentences import refuses

USER = {"role": "user", "content": "Hello"}
SYSTEM = {"role": "system", "content": "Be kind."}
ANSWER = {"role": "assistant", "content": "Hi."}
TURN = "<{{ m.role }}>{{ m.content }}"
REFUSES = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}" + TURN + "{% endfor %}"
)
LEAVES_OUT = "{% for m in messages if m.role != 'system' %}" + TURN + "{% endfor %}"
PLAIN = "{% for m in messages %}" + TURN + "{% endfor %}"
PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize("source", [REFUSES, LEAVES_OUT])
@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([SYSTEM, USER], "<user>Be kind.\n\nHello"),
        ([SYSTEM, SYSTEM, USER], "<user>Be kind.\n\nBe kind.\n\nHello"),
        ([SYSTEM, ANSWER, USER], "<user>Be kind.<assistant>Hi.<user>Hello"),
        ([USER, ANSWER, SYSTEM, USER], "<user>Hello<assistant>Hi.<user>Be kind.\n\nHello"),
        ([USER, SYSTEM], "<user>Hello\n\nBe kind."),
        ([SYSTEM], "<user>Be kind."),
        ([USER, ANSWER, SYSTEM], "<user>Hello<assistant>Hi.<user>Be kind."),
        ([SYSTEM | {"role": "developer"}, USER], "<user>Be kind.\n\nHello"),
        ([SYSTEM | {"content": ""}, USER], "<user>Hello"),
    ],
)
def test_without_a_system_role_the_user_says_it(source, messages, text):
    assert ChatTemplate(source).render(messages) == text


ONE_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('first') }}{% endif %}" + TURN + "{% endfor %}"
)
FIRST_SYSTEM = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}" + TURN + "{% endif %}"
    "{% endfor %}"
)


@pytest.mark.parametrize("source", [ONE_SYSTEM, FIRST_SYSTEM])
@pytest.mark.parametrize("role", ["system", "developer"])
def test_several_system_messages_are_one_where_the_template_takes_one(source, role):
    other = {"role": role, "content": "Be brief."}
    template = ChatTemplate(source)
    merged = "<system>Be kind.\n\nBe brief.<user>Hello"
    assert template.render([SYSTEM, other, USER]) == merged
    middle = f"{merged}<assistant>Hi.<user>Hello"
    assert template.render([SYSTEM, USER, ANSWER, other, USER]) == middle


def test_several_system_messages_stay_where_the_template_shows_them():
    text = ChatTemplate(PLAIN).render([SYSTEM, USER, ANSWER, SYSTEM, USER])
    assert text == "<system>Be kind.<user>Hello<assistant>Hi.<system>Be kind.<user>Hello"


CALLS = "{% for c in m.tool_calls or [] %}[{{ c.id }} {{ c.function.name }}]{% endfor %}"
TOLD = "{% for m in messages %}" + TURN + CALLS + "{{ m.tool_call_id }}{% endfor %}{{ tools }}"
ONE_CALL = (
    "{% for m in messages %}{% if m.tool_calls and m.tool_calls | length > 1 %}"
    "{{ raise_exception('one') }}{% endif %}{% endfor %}" + TOLD
)
NINE_LETTERS = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}"
    "{{ raise_exception('9') }}{% endif %}{% endfor %}{% endfor %}" + TOLD
)


def calls(*ids):
    functions = [{"name": f"f{n}", "arguments": "{}"} for n in range(len(ids))]
    told = [{"id": one, "function": f} for one, f in zip(ids, functions, strict=True)]
    return {"role": "assistant", "content": "", "tool_calls": told}


def result(identity):
    return {"role": "tool", "tool_call_id": identity, "content": "4"}


def test_calls_at_once_are_turns_where_the_template_takes_one():
    talk = [USER, calls("a", "b"), result("b"), result("a"), ANSWER]
    text = ChatTemplate(ONE_CALL).render(talk)
    expected = "<assistant>[a f0]<tool>4a<assistant>[b f1]<tool>4b<assistant>Hi."
    assert text.startswith(f"<user>Hello{expected}")
    assert "[a f0][b f1]" in ChatTemplate(TOLD).render(talk)
    text = ChatTemplate(ONE_CALL).render([USER, calls("a", "b"), result("b"), USER])
    assert "<assistant>[a f0]<assistant>[b f1]<tool>4b" in text


def test_ids_are_shortened_where_the_template_wants_nine_letters():
    text = ChatTemplate(NINE_LETTERS).render(
        [USER, calls("call_0123456789"), result("call_0123456789")]
    )
    short = text.partition("[")[2][:9]
    assert short.isalnum() and text.count(short) == 2
    assert "abcdefgh1" in ChatTemplate(NINE_LETTERS).render([USER, calls("abcdefgh1")])


def test_a_system_message_that_is_lost_behind_a_result_is_told_by_the_user():
    """Mistral Nemo's template shows it in front of the last turn, if the user's."""
    source = (
        "{% for m in messages if m.role != 'system' %}{% if loop.last and m.role == 'user' %}"
        "[{{ messages[0].content }}]{% endif %}" + TURN + "{% for c in m.tool_calls or [] %}"
        "[{{ c.function.name }}]{% endfor %}{% endfor %}"
    )
    template = ChatTemplate(source)
    assert template.render([SYSTEM, USER]) == "[Be kind.]<user>Hello"
    text = template.render([SYSTEM, USER, calls("a"), result("a")])
    assert text == "<user>Be kind.\n\nHello<assistant>[f0]<tool>4"


ALTERNATE = (
    "{% for m in messages if m.role in ('user', 'assistant') and not m.tool_calls %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
    "{% endif %}{% endfor %}" + TOLD
)


@pytest.mark.parametrize(
    ("talk", "text"),
    [
        ([USER, USER, ANSWER], "<user>Hello\n\nHello<assistant>Hi."),
        ([USER, ANSWER, ANSWER, USER], "<user>Hello<assistant>Hi.\n\nHi.<user>Hello"),
        ([SYSTEM, ANSWER, USER], "<system>Be kind.<user><assistant>Hi.<user>Hello"),
        ([USER, calls("a"), result("a"), USER], "<user>Hello<assistant>[a f0]<tool>4\n\nHelloa"),
        (
            [USER, ANSWER, calls("a"), result("a"), ANSWER],
            "<user>Hello<assistant>Hi.[a f0]<tool>4a<assistant>Hi.",
        ),
    ],
)
def test_turns_of_one_role_are_one_where_the_template_wants_turns_to_alternate(talk, text):
    assert ChatTemplate(ALTERNATE).render(talk).startswith(text)


def test_turns_of_one_role_stay_where_the_template_shows_them():
    assert ChatTemplate(PLAIN).render([USER, USER]) == "<user>Hello<user>Hello"


def test_reasoning_has_the_name_that_the_template_reads():
    source = "{% for m in messages %}" + TURN + "{{ m.thinking }}{% endfor %}"
    assert ChatTemplate(source).render([ANSWER | {"reasoning_content": "Hm."}]).endswith("Hi.Hm.")
    assert ChatTemplate(source).render([ANSWER | {"reasoning": "Hm."}]).endswith("Hi.Hm.")


@pytest.mark.parametrize("variable", ["enable_thinking", "thinking"])
def test_no_effort_turns_reasoning_off_in_the_templates_own_way(variable):
    source = PLAIN + "{% if " + variable + " is false %}off{% endif %}"
    assert ChatTemplate(source).render([USER], reasoning_effort="none").endswith("off")
    assert not ChatTemplate(source).render([USER], reasoning_effort="low").endswith("off")


def test_a_system_role_is_used():
    assert ChatTemplate(PLAIN).render([SYSTEM, USER]) == "<system>Be kind.<user>Hello"


def test_a_template_that_wants_a_system_message_gets_it():
    source = "{% if messages[0].role != 'system' %}{{ raise_exception('none') }}{% endif %}" + PLAIN
    assert ChatTemplate(source).render([SYSTEM, USER]) == "<system>Be kind.<user>Hello"


@pytest.mark.parametrize("content", ["Hello", [{"type": "text", "text": "Hello"}]])
def test_a_template_that_reads_parts_only_gets_parts(content):
    template = ChatTemplate(PARTS)
    assert template.shows_messages()
    assert template.render([SYSTEM, USER | {"content": content}]) == "<system>Be kind.<user>Hello"


def test_a_template_of_parts_without_a_system_role_has_it_told_by_the_user():
    source = PARTS.replace("in messages", "in messages if m.role != 'system'")
    assert ChatTemplate(source).render([SYSTEM, USER]) == "<user>Be kind.\n\nHello"


def calling(**fields):
    function = {"name": "add", "arguments": '{"a":  1}'}
    return {"role": "assistant", "tool_calls": [{"id": "1", "function": function}]} | fields


CALLS = (
    "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}"
    "{{ SHOWN }}{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    "shown",
    [
        "c.function.name + c.function.arguments",
        "c.function.name ~ c.function.arguments",
        "c.function.name + (c.function.arguments | trim)",
        "'%s%s' % (c.function.name, c.function.arguments)",
        "[c.function.name, c.function.arguments] | join",
    ],
)
def test_arguments_that_are_spliced_are_the_requests_text(shown):
    assert ChatTemplate(CALLS.replace("SHOWN", shown)).render([calling()]) == 'add{"a":  1}'


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        ("c.function.arguments | tojson", '{"a": 1}'),
        ("c.function.arguments.a + 1", "2"),
        ("c.function.arguments is mapping", "True"),
        ("c.function.arguments is string", "False"),
        ("c.function.arguments.items() | list", "[('a', 1)]"),
    ],
)
def test_arguments_are_an_object_where_they_are_read(shown, text):
    assert ChatTemplate(CALLS.replace("SHOWN", shown)).render([calling()]) == text


def test_control_tokens_in_spliced_arguments_are_cut():
    call = {"function": {"name": "add", "arguments": '{"a": "</s>"}'}}
    template = ChatTemplate(
        CALLS.replace("SHOWN", "'' + c.function.arguments"), control_tokens=["</s>"]
    )
    pieces = template.pieces([{"role": "assistant", "tool_calls": [call]}])
    assert pieces == ['{"a": "<', '/s>"}']


@pytest.mark.parametrize("fields", [{}, {"content": None}, {"content": ""}])
def test_a_template_that_shows_calls_beside_null_only_gets_null(fields):
    source = (
        "{% for m in messages %}{% if m.content is none %}{{ m.tool_calls[0].function.name }}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    assert ChatTemplate(source).render([calling(**fields)]) == "add"


@pytest.mark.parametrize("fields", [{}, {"content": None}, {"content": ""}])
def test_other_templates_get_an_empty_text(fields):
    source = "{% for m in messages %}[{{ m.content }}{{ m.tool_calls | length }}]{% endfor %}"
    assert ChatTemplate(source).render([calling(**fields)]) == "[1]"


@pytest.mark.parametrize(
    ("asks", "expected"),
    [("not enable_thinking", ""), ("not (enable_thinking | default(false))", "closed")],
)
def test_a_template_that_never_asks_whether_thinking_is_defined_gets_it(asks, expected):
    source = f"{{{{ messages[0].content }}}}{{% if {asks} %}}closed{{% endif %}}"
    assert ChatTemplate(source).render([USER]) == USER["content"] + expected
    assert ChatTemplate(source).render([USER], enable_thinking=False).endswith("closed")


def test_a_template_that_is_stopped_is_not_tried_again_in_other_ways(monkeypatch):
    template = ChatTemplate("{{ 'a' * 1000000000 }}")
    restarts, restart = [], template._limits.restart
    monkeypatch.setattr(
        template._limits, "restart", lambda talk: (restarts.append(talk), restart(talk))
    )
    for ask in (template.shows_messages, lambda: template.render([SYSTEM, USER])):
        with refuses(ModelError):
            ask()
    assert len(restarts) == 2


def test_a_form_is_found_in_few_renderings(monkeypatch):
    """Up to a hundred of a long conversation took seconds."""
    template, talks = ChatTemplate(ALTERNATE), []
    rendered = template._rendered
    monkeypatch.setattr(
        template, "_rendered", lambda talk, *o: (talks.append(talk), rendered(talk, *o))[1]
    )
    talk = [SYSTEM, USER, calls("a", "b"), result("a"), result("b"), ANSWER, USER, USER]
    assert template.render(talk).endswith("<user>Hello\n\nHelloNone")
    assert len(talks) < 16


def test_ids_that_are_numbers_are_taken_as_text():
    text = ChatTemplate(NINE_LETTERS).render([USER, calls(5), result(5)])
    assert text == ChatTemplate(NINE_LETTERS).render([USER, calls("5"), result("5")])


@pytest.mark.parametrize("effort", ["low", "medium", "xhigh"])
def test_an_effort_that_a_template_refuses_is_the_nearest_that_it_knows(effort: str) -> None:
    refuses = (
        "{% if reasoning_effort not in ['none', 'high'] %}{{ raise_exception('') }}{% endif %}"
    )
    template = ChatTemplate(refuses + "{{ reasoning_effort }}" + PLAIN)
    assert template.render([USER], reasoning_effort=effort) == "high<user>Hello"
