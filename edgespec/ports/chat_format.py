"""Chat templates and special tokens as a model's files give them.

A runtime may offer it beside the vocabulary. Nothing here is rendered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from edgespec.errors import ModelError

DEFAULT = "default"
FOR_TOOLS = "tool_use"


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """Templates by name, most often only DEFAULT; special tokens by what templates call them."""

    templates: Mapping[str, str] = field(default_factory=dict)
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """`bos_token`, `eos_token` and so on, and their text."""
    control_tokens: frozenset[str] = frozenset()
    """Texts that are read as control tokens wherever they stand, or end a text."""
    added_tokens: frozenset[str] = frozenset()
    """Texts that are read as one token wherever they stand, and are no control tokens."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling settings that the model's makers recommend, by the names of `SamplingParams`; not
    checked."""

    def source(self, model: str, with_tools: bool = False) -> str:
        """The template for a conversation. Raises ModelError where the model has none."""
        if with_tools and FOR_TOOLS in self.templates:
            return self.templates[FOR_TOOLS]
        if DEFAULT in self.templates:
            return self.templates[DEFAULT]
        if self.templates:
            names = ", ".join(sorted(self.templates))
            raise ModelError(
                f"{model} has chat templates ({names}) and none of them is its default: give one "
                "with --chat-template-file"
            )
        raise ModelError(
            f"{model} has no chat template: it continues text and was not trained to converse; "
            "use `edgespec generate`, or give a template with --chat-template-file"
        )


@runtime_checkable
class HasChatFormat(Protocol):
    """Optional protocol of a vocabulary."""

    @property
    def chat_format(self) -> ChatFormat:
        """Empty for a model that says nothing about conversations."""
