"""Finds the library that grammars need, only when one is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.errors import UsageError
from edgespec.ports import Vocabulary

if TYPE_CHECKING:
    from edgespec.grammar.matcher import GrammarCompiler


def new_compiler(vocabulary: Vocabulary, n_logits: int) -> GrammarCompiler:
    """For the tokens of one model. Raises UsageError where the library is not installed."""
    try:
        from edgespec.grammar.matcher import GrammarCompiler
    except ImportError as error:
        raise UsageError(
            f'grammars and JSON schemas need llguidance ({error}): pip install "edgespec[grammar]"'
        ) from error
    return GrammarCompiler(vocabulary, n_logits)
