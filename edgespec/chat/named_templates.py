"""Chat templates by name, which the model's runtime renders. Knows no model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgespec.errors import UsageError, setting
from edgespec.ports.chat_format import NamedTemplate
from edgespec.settings.base import nearest

RENDERED = "named_template"
"""Variable of the Jinja source with the function that renders a conversation."""
_SAMPLE = [("system", "A"), ("user", "B"), ("assistant", "C"), ("user", "D")]

Rendering = Callable[[Sequence[Mapping[str, Any]], bool], str]


def named_template(text: str, known: Mapping[str, NamedTemplate]) -> tuple[str, Rendering] | None:
    """Jinja source of the template with the name `text`, and the function that it calls.

    None if `text` is Jinja itself. A comment in the source shows the marks that the template
    writes. Raises UsageError for any other text.
    """
    if "{" in text:
        return None
    if not known:
        raise UsageError(
            f"the chat template {text[:60]!r} is not Jinja, and names are llama.cpp's, which does "
            f"not run this model: give Jinja, or a file with {setting.use_chat_template}"
        )
    if text not in known:
        raise UsageError(
            f"the chat template {text[:60]!r} is neither Jinja nor a known name "
            f"({', '.join(known)}){nearest(text, known)}"
        )

    def rendered(messages: Sequence[Mapping[str, Any]], begins_answer: bool) -> str:
        turns = [(message["role"], message["content"]) for message in messages]
        return known[text](turns, begins_answer)

    sample = known[text](_SAMPLE, True).replace("#}", "")
    return f"{{{{ {RENDERED}(messages, add_generation_prompt) }}}}{{# {sample} #}}", rendered
