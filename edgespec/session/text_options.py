"""Keyword options of a session's texts, for type checkers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from edgespec.grammar.specification import Grammar
from edgespec.ports import Progress
from edgespec.state.prompt_cache import PromptCache


class TextOptions(TypedDict, total=False):
    """Keyword options of `Session.stream`, which documents them."""

    stop: str | Sequence[str]
    progress: Progress | None
    grammar: Grammar | None
    logprobs: int | None
    prompt_cache: PromptCache | None
