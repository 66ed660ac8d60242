"""Chat templates and special tokens from a model's files.

Templates are not rendered here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgespec.errors import ModelError, setting

DEFAULT = "default"
FOR_TOOLS = "tool_use"


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """Templates by name, usually only DEFAULT, and special tokens by their names in templates."""

    templates: Mapping[str, str] = field(default_factory=dict)
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """Text by name: `bos_token`, `eos_token` and so on."""
    control_tokens: frozenset[str] = frozenset()
    """Strings that are always tokenized as control tokens, or that end a text."""
    added_tokens: frozenset[str] = frozenset()
    """Strings that are always tokenized as one token, which is no control token."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling settings recommended by the model's authors, by fields of `SamplingParams`; not
    validated."""

    def source(self, model: str, with_tools: bool = False) -> str:
        """The template for a conversation. Raises ModelError if the model has none."""
        if with_tools and FOR_TOOLS in self.templates:
            return self.templates[FOR_TOOLS]
        if DEFAULT in self.templates:
            return self.templates[DEFAULT]
        raise ModelError(
            f"{model} has no chat template by default: it continues text and was not trained to "
            f"converse; use `edgespec generate`, or give one with {setting.use_chat_template}"
        )
