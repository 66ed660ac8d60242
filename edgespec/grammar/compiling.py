"""Finds the library that grammars need when one is asked for, and says what memory that takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.errors import UsageError
from edgespec.ports import Vocabulary

if TYPE_CHECKING:
    from edgespec.grammar.matcher import GrammarCompiler


LIBRARY_BYTES = 8 << 20
BYTES_PER_TOKEN = 400
"""Both rounded up from what was measured: 7 MiB, and 200 bytes a token of a vocabulary of 150,000
besides the pieces that Python keeps."""


def bytes_needed(n_vocab: int) -> int:
    """Memory that structured answers take of the process."""
    return LIBRARY_BYTES + BYTES_PER_TOKEN * n_vocab


def new_compiler(vocabulary: Vocabulary, n_logits: int) -> GrammarCompiler:
    """For the tokens of one model. Raises UsageError where the library is not installed."""
    try:
        from edgespec.grammar.matcher import GrammarCompiler
    except ImportError as error:
        raise UsageError(
            f'grammars and JSON schemas need llguidance ({error}): pip install "edgespec[grammar]"'
        ) from error
    return GrammarCompiler(vocabulary, n_logits)
