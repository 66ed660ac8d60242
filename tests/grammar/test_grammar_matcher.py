"""Grammars on the tokens of a vocabulary."""

from __future__ import annotations

import pytest

pytest.importorskip("llguidance", reason="the extra `grammar` is not installed")

from edgespec.errors import GrammarError
from edgespec.grammar.matcher import GrammarCompiler
from edgespec.grammar.specification import json_schema, regular_expression
from fake_model import FakeVocabulary


def test_a_vocabulary_without_an_end_of_generation_has_no_grammars() -> None:
    """It was an IndexError."""
    with pytest.raises(GrammarError):
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


def test_what_is_forced_begins_without_a_blank_that_the_tokenizer_adds() -> None:
    """SentencePiece's tokens of a text begin with a blank: such a token was forced, and refused."""
    pieces = [b"a", b" a", b"\n", b" ", b"<end>"]

    class Blanks(FakeVocabulary):
        def encode(self, text: str, add_special: bool = True) -> list[int]:
            data, tokens = (" " + text).encode(), []
            while data:
                n = 2 if data[:2] in pieces else 1
                tokens.append(pieces.index(data[:n]))
                data = data[n:]
            return tokens

    state = GrammarCompiler(Blanks(len(pieces), {4}, pieces), len(pieces)).start(
        regular_expression("aaa")
    )
    for _ in range(3):
        assert state.forced(1) in ([0], [])
        state.take(int(state.allowed().argmax()))
    assert state.allowed().nonzero()[0].tolist() == [4]
