"""Grammars on the tokens of a vocabulary."""

from __future__ import annotations

import pytest

pytest.importorskip("llguidance", reason="the extra `grammar` is not installed")

from edgespec.errors import GrammarError
from edgespec.grammar.matcher import GrammarCompiler
from fake_model import FakeVocabulary


def test_a_vocabulary_without_an_end_of_generation_has_no_grammars() -> None:
    """It was an IndexError."""
    with pytest.raises(GrammarError, match="no end-of-generation token"):
        GrammarCompiler(FakeVocabulary(26), 26)
