"""Chat templates: Hugging Face's helpers, and limits for templates that loop, grow or fail."""

import time

import pytest

from edgespec.chat.template import ChatTemplate
from edgespec.errors import ModelError, UsageError

CHATML = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "größer <als> 'a'", "parameters": {"b": 1, "a": 2}},
}


def render(source: str, messages=HELLO, **variables) -> str:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(
        messages, **variables
    )


def test_a_conversation_becomes_the_text_that_the_model_was_trained_on():
    messages = [{"role": "system", "content": "Be brief."}, *HELLO]
    assert render(CHATML, messages) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_without_a_generation_prompt_it_ends_with_the_last_message():
    assert render(CHATML, add_generation_prompt=False).endswith("Hello<|im_end|>\n")


def test_special_tokens_and_further_variables_are_known():
    assert render("{{ bos_token }}{{ enable_thinking }}{{ eos_token }}", enable_thinking=False) == (
        "<s>False</s>"
    )


def test_messages_win_over_variables_of_the_same_name():
    assert render("{{ messages[0].content }}", tools=None) == "Hello"


def test_tojson_is_plain_json_and_not_escaped_for_html():
    source = "{{ tools[0] | tojson }}|{{ tools[0].function.parameters | tojson(indent=2) }}"
    assert render(source, tools=[TOOL]) == (
        '{"type": "function", "function": {"name": "add", "description": "größer <als> \'a\'", '
        '"parameters": {"b": 1, "a": 2}}}|{\n  "b": 1,\n  "a": 2\n}'
    )


def test_loops_may_break_and_continue():
    source = "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}"
    source += "{% if i == 3 %}{% break %}{% endif %}{% endfor %}"
    assert render(source) == "023"


def test_the_date_is_that_of_today():
    assert render("{{ strftime_now('%Y') }}") == time.strftime("%Y")


def test_marks_for_training_leave_the_text_as_it_is():
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    assert render(source) == "Hello"


def test_macros_namespaces_and_filters_work_as_ever():
    source = """\
{%- macro shout(text, times=2) %}{{ (text | upper ~ '!') * times }}{% endmacro %}
{%- set ns = namespace(n=0) %}
{%- for m in messages | selectattr('role', 'equalto', 'user') %}
{%- set ns.n = ns.n + 1 %}{{ shout(m.content | trim) }}{% endfor %}
{{- ns.n }} {{ messages | map(attribute='role') | join(', ') }} {{ '%03d' % 7 }}
{%- set block %}{{ 'x' | replace('x', 'yz') }}{% endset %}{{ block }}
{{- 'a,b'.split(',') | last }}"""
    assert render(source) == "HELLO!HELLO!1 user 007yzb"


def test_a_template_may_refuse_a_conversation():
    source = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ModelError, match="refuses these messages: roles must alternate"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% for i in [1] * 9000000 recursive %}{{ loop([i, i]) }}{% endfor %}",
    ],
    ids=["nested", "macro", "recursive"],
)
def test_a_template_that_loops_is_stopped(source):
    with pytest.raises(ModelError, match=r"was stopped|without end"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10000000000 }}",
        "{{ 10000000000 * 'a' }}",
        "{{ 99999 ** 9999999 }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '{:9999999999}'.format(1) }}",
        "{{ 'a' | center(9999999999) }}",
        "{{ 'a'.ljust(9999999999) }}",
        "{{ [1] | batch(9999999999, 'x') | list }}",
        "{{ '%9999999999d' | format(1) }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}"
        "{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}"
        "{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}"
        "{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}{% endfor %}",
        "{% set a = 'a' * 900000 %}{{ a | replace('a', a) }}",
        "{% set a = 'a' * 900000 %}{{ a.replace('a', a) }}",
        "{% set a = 'a' * 900000 %}{{ ([a] * 900000) | join }}",
        "{% set a = '\n' * 900000 %}{{ a | indent(900000) }}",
    ],
)
def test_a_template_that_writes_too_much_is_stopped_before_it_does(source):
    with pytest.raises(ModelError, match="was stopped"):
        render(source)


NESTED = (
    "{% set ns = namespace(x=[1], y=[1], t=(1,)) %}{% for i in range(60) %}"
    "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% set ns.t = (ns.t, ns.t) %}"
    "{% endfor %}"
)


@pytest.mark.parametrize(
    "use",
    [
        "{{ ns.x }}",
        "{{ ns }}",
        "{{ ns.x ~ 'a' }}",
        "{{ ns.x | string }}",
        "{{ ns.x | tojson }}",
        "{{ ns.x | pprint }}",
        "{{ ns.x | join(', ') }}",
        "{{ [ns.x] | map('string') | list }}",
        "{{ '%s' % ns.x }}",
        "{{ '%s' % (ns.x,) }}",
        "{{ '%s' | format(ns.x) }}",
        "{{ '{}'.format(ns.x) }}",
        "{{ '{x}'.format(x=ns.x) }}",
        "{{ ns.x | upper }}",
        "{{ ns.x | length ~ (ns.x | urlencode) }}",
        "{{ ns.x == ns.y }}",
        "{{ ns.x in [ns.y] }}",
        "{{ ns.x is eq ns.y }}",
        "{{ ns.x is in [ns.y] }}",
        "{{ [ns.x].index(ns.y) }}",
        "{{ [ns.x].count(ns.y) }}",
        "{{ [ns.x, ns.y] | sort }}",
        "{{ [ns.t] | unique | list }}",
        "{{ {ns.t: 1} }}",
        "{{ {}[ns.t] }}",
        "{{ {}.get(ns.t) }}",
        "{{ ns.x | sum(start=[]) | string }}",
    ],
)
def test_a_value_that_is_without_end_on_paper_is_stopped(use):
    with pytest.raises(ModelError, match="was stopped"):
        render(NESTED + use)


def test_a_value_that_is_in_itself_is_stopped():
    with pytest.raises(ModelError, match="was stopped"):
        render("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}")


def test_lists_that_are_not_written_out_may_be_nested():
    assert render(NESTED + "{{ ns.x | length }}{{ ns.x | first | length }}") == "22"


def test_after_a_template_was_stopped_it_can_be_used_again():
    source = "{% for m in messages %}{{ 'a' * (m.content | int) }}{% endfor %}"
    template = ChatTemplate(source)
    with pytest.raises(ModelError):
        template.render([{"role": "user", "content": "10000000000"}])
    assert template.render([{"role": "user", "content": "3"}]) == "aaa"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.keys() }}",
        "{% include '/etc/passwd' %}",
        "{{ cycler.__init__.__globals__.os }}",
    ],
)
def test_a_template_reaches_nothing_but_its_arguments(source):
    with pytest.raises(ModelError, match="refuses these messages"):
        render(source)


def test_a_template_that_is_none_names_its_line():
    with pytest.raises(ModelError, match=r"wrong in line 2.*--chat-template-file"):
        ChatTemplate("a\n{% if %}")


def test_a_template_of_megabytes_is_refused():
    with pytest.raises(ModelError, match=r"1,048,577 characters"):
        ChatTemplate(" " * (1 + (1 << 20)))


def test_tools_are_refused_where_the_template_does_not_know_them():
    with pytest.raises(UsageError, match="knows no tools"):
        render(CHATML, tools=[TOOL])


def test_the_caller_s_messages_stay_as_they_are():
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    assert render(CHATML, messages) == render(CHATML)
    assert messages == [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
