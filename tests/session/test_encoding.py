"""Length of a prompt that is read before it is refused."""

from __future__ import annotations

import re
from contextlib import nullcontext

import pytest

from edgespec.errors import ContextOverflow
from edgespec.session.tokenizer import Tokenizer


class Words:
    """A vocabulary whose tokens are words, a space included; counts what it was given."""

    n_vocab = 2
    eog_tokens: frozenset[int] = frozenset()
    longest_piece_bytes = 1_000_000

    def __init__(self) -> None:
        self.n_characters = 0

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        self.n_characters += len(text)
        return [1 for _ in re.findall(r"\S+|\s+", text)]

    def piece(self, token: int) -> bytes:
        return b""

    def token_bytes(self, token: int) -> bytes:
        return b""


def encoded(text: str, vocabulary: Words, n_ctx: int) -> list[int]:
    return Tokenizer(vocabulary, n_ctx, nullcontext()).encode(text)  # type: ignore[arg-type]


def test_a_prompt_is_encoded_whole() -> None:
    assert encoded("one two three", Words(), 100) == [1] * 5


def test_a_prompt_without_end_is_refused_after_its_beginning() -> None:
    vocabulary, text = Words(), "word " * 6_000
    with pytest.raises(ContextOverflow) as caught:
        encoded(text, vocabulary, 1000)
    assert (caught.value.n_ctx, caught.value.is_counted) == (1000, False)
    assert 0 < vocabulary.n_characters < len(text)


@pytest.mark.parametrize("n_tokens", [1000, 1001, 2000])
def test_what_is_not_far_too_long_is_counted(n_tokens: int) -> None:
    """The context's end is for whoever checks the tokens."""
    text = "word " * (n_tokens // 2) + "x" * (n_tokens % 2)
    assert len(encoded(text, Words(), 1000)) == n_tokens


def test_what_no_tokens_could_hold_is_not_read_at_all() -> None:
    vocabulary = Words()
    vocabulary.longest_piece_bytes = 10
    with pytest.raises(ContextOverflow) as caught:
        encoded("x" * 1001, vocabulary, 100)
    assert (caught.value.n_ctx, caught.value.n_prompt_tokens) == (100, 101)
    assert vocabulary.n_characters == 0


def test_a_small_context_does_not_refuse_what_is_cut_in_a_word() -> None:
    """The beginning of a word may have more tokens than the word."""
    assert len(encoded("word " * 30, Words(), 4)) == 60


def test_of_characters_of_several_tokens_few_are_read() -> None:
    """A text of Japanese took three times the bytes that its characters say."""
    vocabulary = Words()
    with pytest.raises(ContextOverflow):
        encoded("a " * 20_000, vocabulary, 1000)
    assert vocabulary.n_characters <= 4000
