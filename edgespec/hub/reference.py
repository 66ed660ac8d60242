"""How a user names a model of a hub: `USER/REPO`, `USER/REPO:QUANT`, as llama.cpp spells it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgespec.errors import UsageError

_REFERENCE = re.compile(r"(\w[\w.-]*/\w[\w.-]*)(?::([\w.-]+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class HubReference:
    """A repository, and which of its models."""

    repo: str
    quant: str | None = None
    """As in the file's name: `Q4_K_M`, in any case. None leaves the choice to us."""

    def __str__(self) -> str:
        return f"{self.repo}:{self.quant}" if self.quant else self.repo


def parse_reference(text: str) -> HubReference:
    """Raises UsageError for what names no repository."""
    match = _REFERENCE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"{text!r} names no model of a hub: write USER/REPO or USER/REPO:QUANT, such as "
            "ggml-org/gemma-3-1b-it-GGUF:Q4_K_M"
        )
    return HubReference(match[1], match[2])
