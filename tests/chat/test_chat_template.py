"""Chat templates: Hugging Face's helpers, and limits for templates that loop, grow or fail."""

import json
from datetime import datetime

import pytest

from edgespec.chat import render_limits
from edgespec.chat.template import ChatTemplate
from edgespec.errors import ModelError
from sentences import refuses

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


def render(source: str, messages=HELLO, tools=None, **variables) -> str:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(
        messages, tools, **variables
    )


def test_a_conversation_becomes_the_text_that_the_model_was_trained_on():
    messages = [{"role": "system", "content": "Be brief."}, *HELLO]
    assert render(CHATML, messages) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


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


def test_templates_know_the_date():
    source = "{{ date_string }}|{{ datetime }}|{{ messages[0].content }}"
    day, date, _ = render(source).split("|")
    today = datetime.now()
    assert (day, date) == (today.strftime("%d %b %Y"), today.strftime("%b %d %Y"))
    assert render(source, date_string="then").startswith("then|")


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
    with pytest.raises(ModelError, match="alternate"):
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
def test_a_template_that_loops_is_stopped(source, monkeypatch):
    monkeypatch.setattr(render_limits, "MAX_SECONDS", 0.2)
    with refuses(ModelError):
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
        "{% set ns = namespace(l=[], a='a' * 900000) %}{% for i in range(3000) %}"
        "{% set ns.l = ns.l + [ns.a] %}{% endfor %}{{ ns.l }}",
        "{% set ns = namespace(l=[], a='a' * 900000) %}{% for i in range(3000) %}"
        "{% set ns.l = ns.l + [ns.a] %}{% endfor %}{{ 'a' ~ ns.l }}{{ ns.l | string }}",
    ],
)
def test_a_template_that_writes_too_much_is_stopped_before_it_does(source):
    with refuses(ModelError):
        render(source)


@pytest.mark.parametrize(
    "doubled",
    [
        "[ns.x, ns.x]",
        "(ns.x, ns.x)",
        "{1: ns.x, 2: ns.x}",
        "dict(a=ns.x, b=ns.x)",
        "{}.fromkeys([1, 2], ns.x)",
        "[0, 0] | map('default', ns.x, true) | list",
    ],
)
def test_a_value_that_is_without_end_on_paper_is_stopped(doubled, monkeypatch):
    """Each round takes a few more bytes; what is written, compared or hashed doubles."""
    monkeypatch.setattr(render_limits, "MAX_PARTS", 1 << 14)
    source = "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = DOUBLED %}"
    with refuses(ModelError):
        render(source.replace("DOUBLED", doubled) + "{% endfor %}{{ ns.x == ns.x }}")


def test_a_value_of_many_levels_is_stopped():
    """Python overflows its stack when it hashes one."""
    source = "{% set ns = namespace(t=()) %}{% for i in range(90000) %}{% set ns.t = (ns.t,) %}"
    with refuses(ModelError):
        render(source + "{% endfor %}{{ {ns.t: 1} }}")


def test_a_value_that_is_in_itself_is_stopped():
    with refuses(ModelError):
        render("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}")


@pytest.mark.costly
@pytest.mark.parametrize(
    "source",
    [
        "{{ ('%(x)s' * 100000) % {'x': 'a' * 900000} }}",
        "{{ ('{0}' * 100000).format('a' * 900000) }}",
        "{{ '{:{}}'.format('', 9999999999) }}",
        "{{ range(99999) | map('string') | join('a' * 900000) }}",
        "{% set a = [1] * 300000 %}" + "{{ a }}" * 99,
        "{% set a = 'a' * 900000 %}{% set ns = namespace(l=[]) %}{% for i in range(90000) %}"
        "{% set ns.l = ns.l + [a[1:]] %}{% endfor %}",
        "{{ 0xffffffffffffffffffffffffff // 3 }}",
    ],
)
def test_what_grows_by_many_arguments_is_stopped_before_it_does(source):
    with refuses(ModelError):
        render(source)


def test_a_list_that_a_template_wrote_may_grow_and_shrink():
    """Kimi K2's templates keep the ids of calls so, until results come."""
    source = (
        "{% set ns = namespace(ids=[]) %}{% set _ = ns.ids.append('a') or ns.ids.append('b') %}"
    )
    assert render(source + "{{ ns.ids }}{{ ns.ids.pop(0) }}{{ ns.ids }}") == "['a', 'b']a['b']"


@pytest.mark.parametrize(
    "source",
    [
        "{% set l = [] %}{% set many = [l] * 900000 %}{{ l.append(1) }}",
        "{% set l = [] %}{% set late = l.append %}{% set many = (l, l) %}{{ late(1) }}",
        "{% set l = [] %}{{ l.append(l) }}",
        "{% set l = [] %}{{ l.append([1]) }}",
        "{% set l = [] %}{% set a = 'a' * 900000 %}{% for i in range(90) %}"
        "{% set _ = l.append(a) %}{% endfor %}",
        "{% set l = [1] %}{% for i in l %}{% set _ = l.append('a' * 9000) %}{% endfor %}",
    ],
)
def test_no_value_grows_without_end_by_its_parts(source):
    with refuses(ModelError):
        render(source)


def test_loops_in_an_expression_are_stopped_in_time(monkeypatch):
    monkeypatch.setattr(render_limits, "MAX_SECONDS", 0.05)
    template = ChatTemplate("{{ range(9999) | select('in', range(99999) | list | sort) | list }}")
    with refuses(ModelError):
        template.render([{"role": "user", "content": "Hello"}])


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
    with refuses(ModelError):
        render(source)


@pytest.mark.parametrize("use", ["'a'.center(9)", "'a'.zfill(9)", "[1] | sum"])
def test_what_grows_in_ways_of_its_own_is_not_offered(use):
    with refuses(ModelError):
        render("{{ " + use + " }}")


def test_a_template_of_megabytes_is_refused():
    with refuses(ModelError):
        ChatTemplate(" " * (1 + (1 << 20)))


def test_tools_calls_and_results_are_text_where_the_template_does_not_know_them():
    function = {"name": "add", "arguments": '{"a": 1}'}
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": function}]}
    result = {"role": "tool", "tool_call_id": "1", "content": "4"}
    user = {"role": "user", "content": "Hi"}
    text = render(
        CHATML, [{"role": "system", "content": "Be kind."}, user, call, result], tools=[TOOL]
    )
    assert text.startswith("<|im_start|>system\nBe kind.\n\nYou can call functions.")
    assert json.dumps(TOOL["function"]["name"]) in text
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>' in text
    assert "<|im_start|>user\n<tool_response>\n4\n</tool_response><|im_end|>" in text


def test_firefunctions_template_can_add_its_functions():
    assert render("{{ 'Functions: ' + functions }}") == "Functions: "


def test_variables_of_the_names_of_arguments_are_left_out():
    given = {"messages": [], "tools": []}
    assert ChatTemplate(CHATML).render(HELLO, **given) == render(CHATML)
