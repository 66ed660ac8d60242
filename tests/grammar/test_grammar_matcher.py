"""Grammars on the tokens of a vocabulary."""

from __future__ import annotations

import pytest

pytest.importorskip("llguidance", reason="the extra `grammar` is not installed")

from edgespec.errors import GrammarError
from edgespec.grammar.matcher import GrammarCompiler
from edgespec.grammar.specification import json_schema
from fake_model import FakeVocabulary


def test_a_vocabulary_without_an_end_of_generation_has_no_grammars() -> None:
    """It was an IndexError."""
    with pytest.raises(GrammarError, match="end-of-generation"):
        GrammarCompiler(FakeVocabulary(26), 26)


def test_what_is_allowed_some_tokens_ahead_is_what_is_allowed_there() -> None:
    pieces = [b"{", b"}", b'"a"', b": ", b"1", b"2", b", ", b"<end>"]
    vocabulary = FakeVocabulary(len(pieces), {7}, pieces)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    compiler = GrammarCompiler(vocabulary, len(pieces))
    text = [0, 2, 3, 4, 1, 7]
    state = compiler.start(json_schema(schema))
    for n_taken in range(len(text)):
        there = compiler.start(json_schema(schema))
        for token in text[:n_taken]:
            there.take(token)
        for end, token in enumerate(text[n_taken:], n_taken):
            assert state.allowed(text[n_taken:end]).tolist() == there.allowed().tolist()
            there.take(token)
        assert not state.allowed([6, *text[n_taken:]]).any()
        state.take(text[n_taken])
