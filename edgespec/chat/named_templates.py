"""Chat templates by llama.cpp's names, as Jinja generated from a table of turns.

Knows no model. The templates do not write the BOS token, which the tokenizer adds.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from edgespec.errors import UsageError
from edgespec.settings.base import nearest

_ROLES = "this chat template knows the roles system, user and assistant"


@cache
def names() -> tuple[str, ...]:
    """All names, in alphabetical order."""
    return tuple(sorted(_turns()))


def named_template(text: str) -> str | None:
    """The Jinja source of the template with the name `text`; None if `text` is Jinja itself.

    Raises UsageError for any other text.
    """
    if text in _turns():
        return _source(_turns()[text])
    if "{" in text:
        return None
    raise UsageError(
        f"the chat template {text[:60]!r} is neither Jinja nor a known name "
        f"({', '.join(names())}){nearest(text, names())}"
    )


@cache
def _turns() -> Mapping[str, Mapping[str, str]]:
    path = files("edgespec.chat").joinpath("named_templates.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _source(turns: Mapping[str, str]) -> str:
    user = _shown(turns["user"])
    if "system_user" in turns:
        user = (
            "{% if loop.previtem is defined and loop.previtem.role == 'system' %}"
            + _shown(turns["system_user"])
            + "{% else %}"
            + user
            + "{% endif %}"
        )
    return (
        _text(turns.get("begin", ""))
        + "{% if messages[0].role != 'system' %}"
        + _text(turns.get("without_system", ""))
        + "{% endif %}{% for m in messages %}{% if not loop.first %}"
        + _text(turns.get("between", ""))
        + "{% endif %}{% if m.role == 'system' %}"
        + _shown(turns["system"])
        + "{% elif m.role == 'user' %}"
        + user
        + "{% elif m.role == 'assistant' %}"
        + _shown(turns["assistant"])
        + f"{{% else %}}{{{{ raise_exception({json.dumps(_ROLES)}) }}}}{{% endif %}}{{% endfor %}}"
        + "{% if add_generation_prompt %}"
        + _text(turns.get("answer", ""))
        + "{% endif %}"
    )


def _shown(turn: str) -> str:
    """Jinja source of one message with the text around it."""
    for mark, shown in (("{trim}", "{{ m.content | trim }}"), ("{}", "{{ m.content }}")):
        before, found, after = turn.partition(mark)
        if found:
            return _text(before) + shown + _text(after)
    return _text(turn)


def _text(text: str) -> str:
    """`text` as a Jinja string expression, which is neither trimmed nor interpreted."""
    return f"{{{{ {json.dumps(text, ensure_ascii=False)} }}}}" if text else ""
