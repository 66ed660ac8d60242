"""Finds the library that grammars need when one is asked for, and says what memory that takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec import extras

if TYPE_CHECKING:
    from edgespec.grammar.matcher import GrammarCompiler
    from edgespec.ports import Vocabulary

LIBRARY_BYTES = 8 << 20
BYTES_PER_TOKEN = 400
GRAMMAR_BYTES = 8 << 20
"""All rounded up from what was measured: 7 MiB, 200 bytes a token of a vocabulary of 150,000
besides the pieces that Python keeps, and for the largest grammar 6 MiB to compile, 8 to follow."""
_EXTRA, _WHY = "grammar", "grammars and JSON schemas need llguidance"


def bytes_needed(n_vocab: int) -> int:
    """Memory that structured answers take of the process."""
    return LIBRARY_BYTES + BYTES_PER_TOKEN * n_vocab + GRAMMAR_BYTES


def check_installed() -> None:
    """Raises UsageError where the library is not installed, without importing it."""
    extras.find("llguidance", _EXTRA, _WHY)


def new_compiler(vocabulary: Vocabulary, n_logits: int) -> GrammarCompiler:
    """For the tokens of one model. Raises UsageError where the library is not installed."""
    with extras.needed(_EXTRA, _WHY):
        from edgespec.grammar.matcher import GrammarCompiler
    return GrammarCompiler(vocabulary, n_logits)
